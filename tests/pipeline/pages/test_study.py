"""Tests of the study's page: which pairs it shows, that it hides the methods, and that a reader can answer."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from helpers.pages_data import METHODS, TRIALS, build_study, data_of, pixels_of
from lantern.methods import MethodSpec
from lantern.prompts import Prompt
from lantern.records import GenerationRecords
from lantern_pipeline.pages.study import CHECK, PAIR, Trial, choose_wrong_prompts, select_trials
from lantern_pipeline.pages.study_analysis import analyse_answers


def test_the_page_does_not_tell_the_methods():
    html, key = build_study()
    text = re.sub(r"data:image/png;base64,[A-Za-z0-9+/=]+", "", html).lower()
    text = text.replace("lantern-study-", "")  # the name of the file that readers save
    words = ["autoregressive", "baseline", "relaxed", "speculative", "lantern", "proximity", "delta", "method", "check"]
    words += [trial["prompt_id"] for trial in key["trials"].values()]
    assert [word for word in words if word in text] == []
    assert set(data_of(html)["trials"][0]) == {"id", "caption", "images"}


def test_the_key_knows_the_autoregressive_image_of_each_pair():
    html, key = build_study()
    for shown in data_of(html)["trials"]:
        hidden = key["trials"][shown["id"]]
        number = next(i for i, trial in enumerate(TRIALS) if trial.prompt_id == hidden["prompt_id"])
        assert (hidden["kind"], hidden["method_id"]) == (TRIALS[number].kind, TRIALS[number].method_id)
        images = shown["images"][:: -1 if hidden["baseline"] else 1]
        assert [pixels_of(image)[0, 0, 0] for image in images] == [5 * number + 1, 5 * number + 2]
    assert key["methods"] == METHODS and data_of(html)["id"] == key["study"]


def test_neither_position_nor_order_gives_the_answer_away_and_a_seed_gives_the_same_page():
    keys = [build_study(seed)[1] for seed in range(20)]
    # 400 fair coins: outside 150 to 250 with a chance of one in two million.
    assert 150 <= sum(trial["baseline"] for key in keys for trial in key["trials"].values()) <= 250
    assert len({tuple(trial["prompt_id"] for trial in key["trials"].values()) for key in keys}) == 20
    assert build_study(3) == build_study(3)
    assert len({key["study"] for key in keys} | {build_study(question="Which is nicer?")[1]["study"]}) == 21


def test_small_images_are_enlarged_by_whole_factors_and_large_ones_stay():
    for side, width in ((4, 336), (48, 336), (256, 256), (512, 512)):
        trial = Trial(PAIR, "a", "p", METHODS[0]["method_id"], np.zeros((2, side, side, 3), np.uint8))
        assert data_of(build_study(trials=[trial])[0])["width"] == width


def test_a_study_without_a_pair_is_refused():
    with pytest.raises(ValueError, match=r"no pair to show.*study\.methods"):
        build_study(trials=[trial for trial in TRIALS if trial.kind == CHECK])


LEVELS = """async () => {
    const levels = [];
    for (const id of ["leftImage", "rightImage"]) {
        const image = document.getElementById(id), context = document.createElement("canvas").getContext("2d");
        await image.decode();
        context.drawImage(image, 0, 0);
        levels.push(context.getImageData(0, 0, 1, 1).data[0]);
    }
    return levels;
}"""


def test_a_reader_answers_in_a_browser_and_the_saved_file_gives_back_what_was_preferred(browser, tmp_path):
    """The reader prefers the autoregressive image of the first method, and the other one of the second."""
    html, key = build_study()
    path = tmp_path / "study.html"
    path.write_text(html, encoding="utf-8")
    page, requests, errors = browser.new_page(), [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text))
    page.goto(path.as_uri())
    page.keyboard.press("Enter")
    for _ in TRIALS:
        left, right = page.evaluate(LEVELS)
        trial = TRIALS[left // 5]
        assert page.inner_text("#caption") == trial.caption
        wants_first = trial.method_id != METHODS[1]["method_id"]
        page.keyboard.press("ArrowLeft" if (left < right) == wants_first else "ArrowRight")
    with page.expect_download() as download:
        page.click("#download")
    answers = tmp_path / download.value.suggested_filename
    download.value.save_as(answers)
    assert page.title() != "stolen"
    page.close()
    assert errors == [] and {url for url in requests if not url.startswith(("data:", "blob:"))} == {path.as_uri()}
    table, about = analyse_answers([answers], key, min_checks=1.0)
    assert table["share_autoregressive"].tolist() == [1, 0] and about["num_inattentive"] == 0


# --- which pairs ----------------------------------------------------------------------------------------------------


class Tokenizer(nn.Module):
    """Stand-in that decodes code c to the grey level c."""

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(shape=(2, 2), codebook_size=256)
        self.unused = nn.Parameter(torch.zeros(1))

    def decode(self, codes):
        return (codes.float() / 127.5 - 1)[:, None].expand(-1, 3, -1, -1)


PROMPTS = [Prompt(f"p{i}", text) for i, text in enumerate(["a red ring", "a blue cross", "a red cross", "a green dot"])]
RELAXED = {"acceptance": "additive", "k": 20, "neighbours": "l2_normalised"}
SPECS = [
    MethodSpec.of("autoregressive", method_id="autoregressive"),
    MethodSpec.of("coupled", tree="chain3", drafts="coupled", method_id="coupled"),
    MethodSpec.of("lantern", tree="dynamic", drafts="top", **RELAXED, delta=0.1, method_id="lantern-0.1"),
    MethodSpec.of("lantern", tree="dynamic", drafts="top", **RELAXED, delta=0.4, method_id="lantern-0.4"),
    MethodSpec.of("mine", tree="chain3", drafts="sampled", **RELAXED, delta=0.2, method_id="mine"),
]


def select(**settings):
    """Select pairs: image i is grey level 10 i (autoregressive) or 10 i + m (method m), and equal for prompt 1."""
    records = {}
    for number, spec in enumerate(SPECS):
        codes = torch.arange(4)[:, None].mul(10).expand(4, 4).clone()
        codes[[0, 2, 3]] += number * (not spec.is_exact)
        rows = torch.ones(4, dtype=torch.int32)
        tensors = (codes.int(), rows, codes.short(), codes.short(), codes > 0, rows.float(), torch.zeros(4, 0))
        records[spec.method_id] = GenerationRecords([p.id for p in PROMPTS], *tensors, {"method": spec.to_dict()})
    settings = {"methods": None, "num_trials": 2, "num_checks": 0} | settings
    return select_trials(records, PROMPTS, Tokenizer(), settings)


def test_each_relaxed_name_takes_the_next_prompts_and_equal_pairs_are_counted_not_shown():
    trials, methods = select()
    shown = [(trial.method_id, trial.caption, *(int(image[0, 0, 0]) for image in trial.images)) for trial in trials]
    assert shown == [
        ("lantern-0.1", "a red ring", 0, 2),  # prompt 1 is a tie
        ("mine", "a red cross", 20, 24),
        ("mine", "a green dot", 30, 34),
    ]
    assert [tuple(method.values()) for method in methods] == [
        ("lantern-0.1", "LANTERN k 20, δ 0.1", 2, 1),
        ("mine", "mine (chain3, sampled, additive) k 20, δ 0.2", 2, 0),
    ]
    again, _ = select(num_trials=3)  # prompts begin again when they run out
    assert [trial.prompt_id for trial in again if trial.method_id == "mine"] == ["p3", "p0"]
    assert [method["num_ties"] for method in select(methods=["coupled", "lantern-0.4"])[1]] == [2, 0]  # may be exact


def test_a_check_shows_the_last_prompts_with_an_image_that_no_pair_shows():
    (check,) = [trial for trial in select(num_checks=1)[0] if trial.kind == CHECK]
    assert (check.caption, check.method_id) == ("a green dot", "")
    assert [int(image[0, 0, 0]) for image in check.images] == [30, 10]  # the tie's prompt is not shown by a pair


def test_the_wrong_image_of_a_check_has_the_caption_with_the_fewest_common_words():
    texts = ["a red ring", "a red cross", "two blue dots", "a ring"]
    assert choose_wrong_prompts(texts, [0, 3], set()) == [2, 2]
    assert choose_wrong_prompts(texts, [0], {2}) == [1]
    assert choose_wrong_prompts(["a b", "a c", "a d", "a e"], [0, 1, 2], {0}) == [1, 2, 3]


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
