"""Tests of the replay page: its data about timed images, its size, and that it plays."""

import numpy as np
import pytest
import torch

from helpers.pages_data import NUM_TOKENS, PROMPTS, SCRIPT, build_race, data_of, draw, make_timed, pixels_of
from lantern_pipeline.pages import race


def run_of(data, method_id, prompt=0):
    return data["prompts"][prompt]["runs"][[method["id"] for method in data["methods"]].index(method_id)]


def test_autoregressive_decoding_comes_first_and_each_method_says_how_it_verifies():
    data = data_of(build_race(make_timed(gpu="NVIDIA H200")))
    kinds = {method["id"]: method["kind"] for method in data["methods"]}
    assert list(kinds) == ["autoregressive", "coupled", "near", "blind", "sampled"] and data["gpu"] == "NVIDIA H200"
    assert list(kinds.values()) == ["baseline", "exact", "relaxed", "relaxed_rejection", "exact_rejection"]
    greedy = {method["id"]: method["kind"] for method in data_of(build_race(make_timed(temperature=0.0)))["methods"]}
    assert greedy["blind"] == "relaxed" and greedy["sampled"] == "exact"  # the target's best token is known


def test_a_run_has_the_recorded_forwards_marks_and_differences_and_its_image():
    data = data_of(build_race())
    assert data["lines"] * data["columns"] == NUM_TOKENS and [prompt["text"] for prompt in data["prompts"]][1] == SCRIPT
    near = run_of(data, "near")
    assert near["lengths"] == [1, 5, 5, 5] and near["ms"] == [100.0] * 4
    assert near["marks"] == "tddsdtddddtddddt" and near["differs"] == 3
    assert run_of(data, "coupled")["differs"] == 0 and run_of(data, "blind")["differs"] == 16
    assert run_of(data, "autoregressive")["marks"] == "t" * 16
    assert len(data["images"]) == 3 * len(PROMPTS)  # equal ones are stored once
    assert run_of(data, "coupled")["image"] == run_of(data, "autoregressive")["image"]
    for prompt in range(len(PROMPTS)):
        for method_id, level in (("autoregressive", 40), ("near", 40), ("blind", 48)):
            pixels = pixels_of(data["images"][run_of(data, method_id, prompt)["image"]])
            assert pixels[0, 0, 0] == level + 40 * prompt
            assert pixels[0, 7, 0] == level + 40 * prompt + 4 * (method_id == "near")  # its fourth token


def test_a_page_states_where_an_image_begins_among_the_tokens():
    """A smaller image of two codes comes first, and each of the two lines has six codes and an end."""
    positions = torch.arange(2, NUM_TOKENS).view(2, 7)[:, :6]
    data = data_of(race.build_page(make_timed(), PROMPTS, lambda codes: draw(codes[:, :12], shape=(2, 6)), positions))
    assert [data[name] for name in ("lines", "columns", "first", "tokens")] == [2, 6, 2, NUM_TOKENS]


def test_small_images_are_exact_and_large_ones_compressed():
    small, large = data_of(build_race()), data_of(build_race(side=256))
    assert small["pixelated"] and not large["pixelated"]
    noise = np.random.default_rng(0).integers(0, 256, (2, 65, 65, 3), np.uint8)
    assert np.array_equal(pixels_of(race._encode(noise[0][:64, :64])), noise[0][:64, :64])
    assert not np.array_equal(pixels_of(race._encode(noise[1])), noise[1])


def test_the_page_keeps_to_its_size_by_leaving_the_last_prompts_out(monkeypatch):
    whole = len(build_race())
    assert whole < race.MAX_BYTES
    monkeypatch.setattr(race, "MAX_BYTES", whole - 1)
    html = build_race()
    assert len(html) < whole and [prompt["text"] for prompt in data_of(html)["prompts"]] == ["a red ring", SCRIPT]
    monkeypatch.setattr(race, "MAX_BYTES", 10_000)
    with pytest.raises(ValueError, match=r"must fit into 10000 bytes, got .* run fewer methods"):
        build_race()


def test_the_page_plays_in_a_browser_at_the_recorded_pace_and_asks_nothing_of_the_network(browser, tmp_path):
    path = tmp_path / "race.html"
    path.write_text(build_race(), encoding="utf-8")
    page, requests, errors = browser.new_page(), [], []
    page.clock.install(time=0)
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text))
    page.goto(path.as_uri())
    page.clock.pause_at(3600)  # seconds; from here on, time stops until the clock is advanced

    def facts(name):
        return page.locator(f".lane .{name}").all_inner_texts()  # from left to right

    assert facts("forwards") == ["16", "5", "4", "4"]  # opens on finished images
    page.select_option("#prompt", label=SCRIPT)
    page.click("#restart")
    page.click("#play")
    page.clock.run_for(1250)  # at a quarter of the speed: three forwards of 100 ms
    page.click("#play")
    assert facts("forwards") == ["3"] * 4 and page.inner_text("#play") == "Play"
    assert facts("tokens") == ["3 of 16", "8 of 16", "11 of 16", "10 of 16"]
    page.click("#play")
    page.clock.run_for(9000)
    assert facts("tokens") == ["16", "all 16 equal", "3 of 16 differ", "16 of 16 differ"]
    assert facts("speed-up") == ["1.00 ×", "3.20 ×", "4.00 ×", "4.00 ×"]
    assert page.title() == "Token by token" and page.locator("main script, main img").count() == 0
    page.close()
    assert errors == [] and {url for url in requests if not url.startswith("data:")} == {path.as_uri()}
