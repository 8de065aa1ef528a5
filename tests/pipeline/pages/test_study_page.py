"""The study's page: which pairs it shows, that it needs no network, and that it keeps the methods to itself."""

import base64
import hashlib
import io
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from lantern.methods import MethodSpec
from lantern.prompts import Prompt
from lantern.records import GenerationRecords
from lantern_pipeline.pages.study import CHECK, PAIR, Trial, build_page, choose_wrong_prompts, select_trials

QUESTION = "Which image fits better?"
METHODS = [
    {"method_id": "lantern-k20-delta0.1", "label": "LANTERN k 20, δ 0.1", "num_pairs": 5, "num_ties": 1},
    {"method_id": "proximity-k5", "label": "proximity k 5", "num_pairs": 4, "num_ties": 0},
]
SCRIPT = "<script>document.title='stolen'</script> & </script> <!-- “ring”"


def picture(number):
    return np.full((4, 4, 3), number, np.uint8)


def make_trials():
    """Eight pairs and two checks; picture 2i is the autoregressive (or fitting) one of trial i, 2i + 1 the other."""
    kinds = [(PAIR, METHODS[i % 2]["method_id"]) for i in range(8)] + [(CHECK, "")] * 2
    captions = [SCRIPT, *(f"caption {i}" for i in range(1, 10))]
    return [
        Trial(kind, captions[i], f"seen-{i}", method_id, np.stack([picture(2 * i), picture(2 * i + 1)]))
        for i, (kind, method_id) in enumerate(kinds)
    ]


def build(seed=0, trials=None, question=QUESTION):
    return build_page(trials or make_trials(), METHODS, question=question, seed=seed)


def data_of(html):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)[1])


def level_of(uri):
    """Grey level of a picture of one colour."""
    return int(
        np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.removeprefix("data:image/png;base64,")))))[0, 0, 0]
    )


def test_the_page_names_no_address_and_its_texts_stay_text():
    html, _ = build(question="is [[data]] or [[policy]] nicer?")
    text = re.sub(r"data:image/png;base64,[A-Za-z0-9+/=]+|'sha256-[^']*'", "data:", html)
    assert not re.search(r"https?:|//[a-z]|\bfetch\(|XMLHttpRequest|WebSocket|sendBeacon|import\(|@import|url\(", text)
    assert not re.search(r"""\b(src|href)\s*=\s*["'](?!data:)""", text)
    assert "<script>document" not in html and html.count("</script>") == 2
    assert SCRIPT in [trial["caption"] for trial in data_of(html)["trials"]]
    assert data_of(html)["question"] == "is [[data]] or [[policy]] nicer?"


def test_the_policy_allows_data_images_and_exactly_the_own_script_and_styles():
    html, _ = build()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1]
    rules = dict(part.split(" ", 1) for part in policy.split("; "))
    assert rules["default-src"] == "'none'" and rules["img-src"] == "data:"
    for element in ("script", "style"):
        (text,) = re.findall(rf"<{element}>(.*?)</{element}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[f"{element}-src"] == f"'sha256-{digest}'"


def test_the_page_does_not_tell_the_methods():
    html, key = build()
    text = re.sub(r"data:image/png;base64,[A-Za-z0-9+/=]+", "", html).lower()
    text = text.replace("lantern-study-", "")  # the name of the file that readers save
    words = ["autoregressive", "baseline", "relaxed", "speculative", "lantern", "proximity", "delta", "method", "check"]
    words += [trial["prompt_id"] for trial in key["trials"].values()]
    for word in words:
        assert word not in text, word
    assert set(data_of(html)["trials"][0]) == {"id", "caption", "images"}


def test_the_key_knows_the_autoregressive_image_of_each_pair():
    html, key = build()
    trials = make_trials()
    for shown in data_of(html)["trials"]:
        hidden = key["trials"][shown["id"]]
        number = next(i for i, trial in enumerate(trials) if trial.prompt_id == hidden["prompt_id"])
        assert (hidden["kind"], hidden["method_id"]) == (trials[number].kind, trials[number].method_id)
        assert level_of(shown["images"][hidden["baseline"]]) == 2 * number
        assert level_of(shown["images"][1 - hidden["baseline"]]) == 2 * number + 1
    assert key["methods"] == METHODS


def test_neither_place_nor_order_gives_the_answer_away():
    places, orders = [], []
    for seed in range(40):
        _, key = build(seed)
        places += [trial["baseline"] for trial in key["trials"].values()]
        orders.append([trial["prompt_id"] for trial in key["trials"].values()])
    # 400 fair coins: outside 150 to 250 with a chance of one in two million.
    assert 150 <= sum(places) <= 250
    assert len({tuple(order) for order in orders}) == 40


def test_a_seed_gives_the_same_page_and_a_change_another_study():
    assert build(3) == build(3)
    studies = {build(seed)[1]["study"] for seed in range(3)} | {build(question="Which is nicer?")[1]["study"]}
    assert len(studies) == 4
    html, key = build()
    assert data_of(html)["id"] == key["study"]


def test_small_images_are_enlarged_by_whole_factors_and_large_ones_stay():
    for side, width in ((4, 336), (48, 336), (256, 256), (512, 512)):
        trial = Trial(PAIR, "a", "p", METHODS[0]["method_id"], np.zeros((2, side, side, 3), np.uint8))
        assert data_of(build(trials=[trial])[0])["width"] == width


def test_a_study_without_a_pair_is_refused():
    with pytest.raises(ValueError, match=r"no pair to show.*study\.methods"):
        build(trials=make_trials()[8:])


# --- which pairs ----------------------------------------------------------------------------------------------------


class Tokenizer(nn.Module):
    """Shows a code c as the grey level c."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def decode(self, codes):
        return (codes.float() / 127.5 - 1).view(-1, 1, 2, 2).expand(-1, 3, -1, -1)


PROMPTS = [Prompt(f"p{i}", text) for i, text in enumerate(["a red ring", "a blue cross", "a red cross", "a green dot"])]
RELAXED = {"acceptance": "additive", "k": 20, "neighbours": "l2_normalised"}
SPECS = [
    MethodSpec.of("autoregressive", method_id="autoregressive"),
    MethodSpec.of("coupled", tree="chain3", drafts="coupled", method_id="coupled"),
    MethodSpec.of("lantern", tree="dynamic", drafts="top", **RELAXED, delta=0.1, method_id="lantern-0.1"),
    MethodSpec.of("lantern", tree="dynamic", drafts="top", **RELAXED, delta=0.4, method_id="lantern-0.4"),
    MethodSpec.of("mine", tree="chain3", drafts="sampled", **RELAXED, delta=0.2, method_id="mine"),
]


def make_records():
    """Image i of the autoregressive method is grey level 10 i; method m's is 10 i + m, but equal for prompt 1."""
    records = {}
    for number, spec in enumerate(SPECS):
        codes = torch.arange(4)[:, None].mul(10).expand(4, 4).clone()
        codes[[0, 2, 3]] += number * (not spec.is_exact)
        rows = torch.ones(4, dtype=torch.int32)
        empty = torch.zeros(4, 0)
        records[spec.method_id] = GenerationRecords(
            [prompt.id for prompt in PROMPTS],
            *(codes.int(), rows, codes.short(), codes.short(), codes > 0, rows.float(), empty),
            {"method": spec.to_dict()},
        )
    return records


def select(**settings):
    settings = {"methods": None, "num_trials": 2, "num_checks": 1} | settings
    return select_trials(make_records(), PROMPTS, Tokenizer(), settings)


def test_each_relaxed_name_takes_the_next_prompts_and_equal_pairs_are_counted_not_shown():
    trials, methods = select(num_checks=0)
    shown = [(trial.method_id, trial.caption, *(int(image[0, 0, 0]) for image in trial.images)) for trial in trials]
    assert shown == [
        ("lantern-0.1", "a red ring", 0, 2),  # prompt 1 is a tie
        ("mine", "a red cross", 20, 24),
        ("mine", "a green dot", 30, 34),
    ]
    assert [(m["method_id"], m["label"], m["num_pairs"], m["num_ties"]) for m in methods] == [
        ("lantern-0.1", "LANTERN k 20, δ 0.1", 2, 1),
        ("mine", "mine (chain3, sampled, additive) k 20, δ 0.2", 2, 0),
    ]


def test_prompts_begin_again_when_they_run_out():
    trials, _ = select(num_trials=3, num_checks=0)
    assert [trial.prompt_id for trial in trials if trial.method_id == "mine"] == ["p3", "p0"]  # p1 is a tie


def test_a_check_shows_the_last_prompts_with_an_image_that_no_pair_shows():
    (check,) = [trial for trial in select()[0] if trial.kind == CHECK]
    assert (check.caption, check.method_id) == ("a green dot", "")
    assert [int(image[0, 0, 0]) for image in check.images] == [30, 10]  # the tie's prompt is not shown by a pair


def test_the_wrong_image_of_a_check_has_the_caption_with_the_fewest_common_words():
    texts = ["a red ring", "a red cross", "two blue dots", "a ring"]
    assert choose_wrong_prompts(texts, [0, 3], set()) == [2, 2]
    assert choose_wrong_prompts(texts, [0], {2}) == [1]
    assert choose_wrong_prompts(["a b", "a c", "a d", "a e"], [0, 1, 2], {0}) == [1, 2, 3]


def test_methods_of_the_reader_s_choice_may_be_exact():
    assert [method["num_ties"] for method in select(methods=["coupled", "lantern-0.4"])[1]] == [2, 0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"methods": ["lantern-0.2"]}, "study.methods.*'lantern-0.2'; there are coupled, lantern-0.1"),
        ({"methods": ["autoregressive"]}, "study.methods names no method to compare"),
        ({"num_trials": 5}, "study.num_trials must be at most the 4 prompts.*got 5"),
        ({"num_checks": 5}, "study.num_checks must be at most the 4 prompts.*got 5"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        select(**settings)
