"""The page of the race: what it holds, that it needs no network, that texts stay text, that it keeps to its size."""

import base64
import io
import json
import re

import numpy as np
import pytest
from PIL import Image

from lantern_pipeline.pages import race as page
from lantern_pipeline.pages.race import MAX_BYTES, build_page
from race_data import NUM_TOKENS, PROMPTS, SCRIPT, draw, make_timed


def build(timed=None, side=8):
    return build_page(timed or make_timed(), PROMPTS, lambda codes: draw(codes, side))


def data_of(html):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)[1])


def pixels_of(uri):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


def run_of(data, method_id, prompt=0):
    return data["prompts"][prompt]["runs"][[method["id"] for method in data["methods"]].index(method_id)]


def test_autoregressive_decoding_comes_first_and_each_method_says_how_it_verifies():
    kinds = {method["id"]: method["kind"] for method in data_of(build())["methods"]}
    assert list(kinds) == ["autoregressive", "coupled", "near", "blind", "sampled"]
    assert list(kinds.values()) == ["baseline", "exact", "relaxed", "relaxed_rejection", "exact_rejection"]
    greedy = {method["id"]: method["kind"] for method in data_of(build(make_timed(temperature=0.0)))["methods"]}
    assert greedy["blind"] == "relaxed" and greedy["sampled"] == "exact"  # the target's best token is known


def test_a_run_has_the_recorded_forwards_marks_and_differences():
    data = data_of(build())
    assert data["grid"] ** 2 == NUM_TOKENS and [prompt["text"] for prompt in data["prompts"]][1] == SCRIPT
    near = run_of(data, "near")
    assert near["lengths"] == [1, 5, 5, 5] and near["ms"] == [100.0] * 4
    assert near["marks"] == "tddsdtddddtddddt" and near["differs"] == 3
    assert run_of(data, "coupled")["differs"] == 0 and run_of(data, "blind")["differs"] == 16
    assert run_of(data, "autoregressive")["marks"] == "t" * 16


def test_equal_images_are_stored_once_and_each_run_has_its_own():
    data = data_of(build())
    assert len(data["images"]) == 3 * len(PROMPTS)
    assert run_of(data, "coupled")["image"] == run_of(data, "autoregressive")["image"]
    for prompt in range(len(PROMPTS)):
        for method_id, level in (("autoregressive", 40), ("near", 40), ("blind", 48)):
            pixels = pixels_of(data["images"][run_of(data, method_id, prompt)["image"]])
            assert pixels[0, 0, 0] == level + 40 * prompt
            assert pixels[0, 7, 0] == level + 40 * prompt + 4 * (method_id == "near")  # its fourth token


def test_small_images_are_exact_and_large_ones_compressed():
    small, large = data_of(build()), data_of(build(side=256))
    assert small["pixelated"] and not large["pixelated"]
    noise = np.random.default_rng(0).integers(0, 256, (2, 65, 65, 3), np.uint8)
    assert np.array_equal(pixels_of(page._encode(noise[0][:64, :64])), noise[0][:64, :64])
    assert not np.array_equal(pixels_of(page._encode(noise[1])), noise[1])


def test_the_page_keeps_to_its_size_by_leaving_the_last_prompts_out(monkeypatch):
    whole = len(build())
    assert whole < MAX_BYTES
    monkeypatch.setattr(page, "MAX_BYTES", whole - 1)
    html = build()
    assert len(html) < whole and [prompt["text"] for prompt in data_of(html)["prompts"]] == ["a red ring", SCRIPT]
    monkeypatch.setattr(page, "MAX_BYTES", 10_000)
    with pytest.raises(ValueError, match=r"must fit into 10000 bytes, got .* run fewer methods"):
        build()


def test_the_page_names_no_address_and_its_texts_stay_text():
    html = build()
    text = re.sub(r"data:image/webp;base64,[A-Za-z0-9+/=]+|'sha256-[^']*'", "data:", html)
    assert not re.search(r"https?:|\bfetch\(|XMLHttpRequest|WebSocket|sendBeacon|import\(|@import|url\(", text)
    assert not re.search(r"""\b(src|href)\s*=\s*["'](?!data:)""", text.replace("<img src=x", ""))
    assert "<script>document" not in html and html.count("</script>") == 2
    assert data_of(html)["prompts"][2]["text"] == "a [[data]] or [[policy]]"
    assert data_of(build(make_timed(gpu="NVIDIA H200")))["gpu"] == "NVIDIA H200"
