"""The report's first screen: its numbers are the table's, its pictures the records', its texts are text."""

from __future__ import annotations

import base64
import io
import json
import re
from functools import cache

import numpy as np
from PIL import Image
from result_tables import SETTINGS, make_tables, with_changes

from lantern_pipeline.pages.front_page import SIZE, describe_front, render_front
from lantern_pipeline.tables.claims import claims_of_rows, describe_setting
from lantern_pipeline.tables.summary import build_summary, select_headline


@cache
def summarise(*changes):
    changes = {"coupled": (31, 0, 0, 0.7), **dict(changes)}  # emits more than EAGLE-1
    return build_summary(*make_tables(with_changes(**changes)), settings=SETTINGS, seed=0)


def describe(*changes, **columns):
    """The first screen of METHODS with `changes` of some, and columns of their table replaced."""
    rows = select_headline(summarise(*changes).assign(**columns), SETTINGS)
    front = describe_front({"setting": describe_setting(rows), **claims_of_rows(rows)})
    assert json.dumps(front, allow_nan=False)
    return front


def test_three_numbers_of_the_best_exact_and_relaxed_methods():
    front = describe()
    exact, relaxed, price = front["tiles"]
    assert front["setting"].startswith(
        "5 methods generate the same images. 20 prompts of the set seen, 6 of them timed"
    )
    assert (exact["title"], exact["number"]) == ("Exact: tokens per forward", "2.06")
    assert exact["text"].startswith("coupled; its images are autoregressive decoding's, token for token. ")
    assert exact["text"].endswith("Speed-up on this machine: 1.43.")
    assert relaxed["number"] == "3.20" and relaxed["text"].startswith("LANTERN chain k 20, δ 0.1; similar tokens")
    assert (price["number"], price["interval"]) == ("0.20", "[0.10, 0.30]")
    assert "→" in price["text"] and "prompt accuracy -1.0 [" in price["text"]
    assert list(front["methods"]) == ["autoregressive", "coupled", "lantern-a"]
    other = describe(("eagle1", (30, 0, 0, 0.5)))  # exact, with other tokens
    assert "in the target's distribution." in other["tiles"][0]["text"]


def test_what_is_missing_is_said():
    bad = [("lantern_a", (20, 1, 0.9, 0.5)), ("lantern_b", (16, 1, 0.9, 0.3))]
    assert [tile["number"] for tile in describe(*bad)["tiles"]] == ["2.06", "–"]
    assert "Only 2 prompts timed: too few to tell." in describe(num_timed=2)["tiles"][0]["text"]
    untold = {"substitution_rate": 0.03, "substitution_rate_low": 0.02, "substitution_rate_high": 0.04}
    price = describe(tv_mean=np.nan, **untold)["tiles"][2]
    assert (price["number"], price["interval"]) == ("≤ 0.03", "[0.02, 0.04]")
    assert describe(tv_mean=np.nan)["tiles"][2]["number"] == "–"
    assert "not idle: other work kept 0.86 cores busy meanwhile;" in describe(busy_elsewhere=0.86)["setting"]
    exact, relaxed, _ = describe(speedup=np.nan, num_timed=np.nan)["tiles"]
    assert exact["number"] == "2.06" and relaxed["text"].endswith("Nothing was timed.")
    assert "prompt accuracy" not in describe(prompt_accuracy_change=np.nan)["tiles"][2]["text"]


def test_the_screen_shows_each_methods_images_and_escapes_texts():
    front = {
        "setting": "1 < 2",
        "tiles": [{"title": "T", "number": "2 ×", "interval": "[1, 3]", "text": "a & b"}],
        "methods": {"auto": "autoregressive", "mine": "<b>"},
    }
    pictures = {
        name: np.full((2, 2 * SIZE, 2 * SIZE, 3), grey, np.uint8) for name, grey in (("auto", 10), ("mine", 200))
    }
    page = render_front(front, pictures, ["a red ring", "<script>"])
    assert "1 &lt; 2" in page and "a &amp; b" in page and "&lt;b&gt;" in page and "<script>" not in page
    pictures = [Image.open(io.BytesIO(base64.b64decode(data))) for data in re.findall(r"base64,([^\"]+)", page)]
    assert [(picture.size, picture.getpixel((0, 0))[0]) for picture in pictures] == [
        ((SIZE, SIZE), value) for value in (10, 10, 200, 200)
    ]
    assert not re.findall(r"(?:src|href)=\"(?!data:)", page)
