"""Tests of ZipAR: the public schedule, images of a loop with one token per pass, and autoregressive decoding."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest
import torch

from helpers.paths import DATA
from helpers.tiny_models import generate, make_models, make_prompts
from lantern.decoding import Decoder, make_decoder
from lantern.kv_cache import window_table
from lantern.methods import make_method
from lantern.models.config import TargetConfig
from lantern.noise import TARGET, NoiseField
from lantern.sampling import SamplingConfig, filter_logits
from lantern_methods.parallel_lines import lines_of
from lantern_methods.zipar import line_schedule

CASES = json.loads((DATA / "peers" / "zipar.json").read_text())
SAMPLING = SamplingConfig(top_k=8, cfg_scale=2.0)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['grid']}-{case['window']}")
def test_positions_are_fed_and_drawn_in_the_public_forwards(case):
    schedule, expected = line_schedule(lines_of(TargetConfig(grid=case["grid"]), case["window"])), case["uniform"]
    drawn = {feed.sampled: number for number, feeds in enumerate(schedule, 1) for feed in feeds}
    assert [0, *(drawn[place] for place in range(1, case["grid"] ** 2))] == expected["step_of_position"]
    assert 1 + len(schedule) == expected["forwards"]
    if expected.get("feeds"):
        assert [[[feed.source, feed.position] for feed in feeds] for feeds in schedule] == expected["feeds"][1:]


def draw_slowly(decoder: Decoder, row: int) -> list[int]:
    """Generate one image with one token in each pass of the target."""
    target, spec = decoder.target, decoder.spec
    features, mask = (part[[row]] for part in make_prompts(decoder.models, 5))
    noise = NoiseField(1, decoder.num_tokens, target.config.vocab_size, (TARGET,))
    noise.fill([0], [decoder.make_noise(7, f"prompt-{row}")])
    first = mask.shape[1]

    def choose(hidden, place):
        position = torch.tensor([[place]])
        keys = filter_logits(target.guided_logits(hidden[:, :, -1:], SAMPLING.cfg_scale, position), SAMPLING)
        return int((keys + noise.gumbel(TARGET, position)).argmax())

    hidden, cache = target.prefill(*target.with_null(features, mask), first + decoder.num_tokens)
    tokens, fed = {0: choose(hidden, 0)}, set()
    for feeds in line_schedule(lines_of(target.config, spec["window"])):
        known = dict(tokens)
        for feed in feeds:
            fed.add(feed.position)
            sees = [place <= feed.position and place in fed for place in range(decoder.num_tokens)]
            seen = cache.mask(window_table(torch.tensor([[sees]]), torch.float32), torch.tensor([first]))
            slot = torch.tensor([[first + feed.position]])
            hidden = target.extend(cache, torch.tensor([[known[feed.source]]]), slot, slot, seen)
            if feed.sampled is not None:
                tokens[feed.sampled] = choose(hidden, feed.sampled)
    return [tokens[place] for place in range(decoder.num_tokens)]


@pytest.mark.parametrize("window", [1, 2, 3])
def test_images_are_those_of_a_loop_that_feeds_one_token_after_the_other(models, window):
    spec = make_method("zipar", window=window)
    decoder = make_decoder(models, spec, SAMPLING)
    with torch.inference_mode():
        expected = [draw_slowly(decoder, row) for row in (4, 1)]
    found = generate(models, spec, [4, 1], top_k=8)
    assert found.codes.tolist() == expected
    assert (found.target_forwards == 4 + 3 * window).all() and (found.step_lengths.sum(1) == 16).all()


@pytest.mark.parametrize(
    "sizes", [{"columns": 6}, {"grid": 6, "columns": 3, "line_end": 1}, {"columns": 5, "small_grid": 2}]
)
def test_lines_of_an_image_that_is_no_square_follow_a_smaller_image(sizes):
    """A small grid is complete before the first line of the large one, with a window below a line of either."""
    models = make_models(**sizes)
    for window in (1, 2, 99):
        spec = make_method("zipar", window=window)
        decoder = make_decoder(models, spec, SAMPLING)
        with torch.inference_mode():
            expected = draw_slowly(decoder, 2)
        found = generate(models, spec, [2], top_k=8)
        assert found.codes[0].tolist() == expected
        assert found.step_lengths.sum() == models.target.config.num_image_tokens == len(expected)
    assert torch.equal(found.codes, generate(models, make_method("autoregressive"), [2], top_k=8).codes)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_window_of_a_line_is_autoregressive_decoding_and_a_smaller_one_is_not(models, temperature):
    sampling = {"temperature": temperature, "top_k": 8}
    expected = generate(models, make_method("autoregressive"), **sampling)
    for window in (4, 16):
        found = generate(models, make_method("zipar", window=window), **sampling)
        for field in fields(expected):
            assert torch.equal(getattr(found, field.name), getattr(expected, field.name)), field.name
    assert not torch.equal(generate(models, make_method("zipar", window=2), **sampling).codes, expected.codes)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"window": 0}, "window of zipar must be an integer >= 1, got 0"),
        ({"window": None}, "zipar with drafts zipar and acceptance exact needs window, an integer"),
        ({"tree": "chain3"}, "zipar fills no tree with drafts, got tree chain3"),
    ],
)
def test_parts_are_checked(parts, words):
    with pytest.raises(ValueError, match=words):
        make_method("zipar", **parts)
