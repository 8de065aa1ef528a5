"""A token of its own at the end of every line of codes, whatever drafts and whatever accepts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_stepping import METHODS, SETTINGS, assert_equal, captured, make_batches, make_decoder, tapes  # noqa: F401

from conftest import make_models
from lantern import rules
from lantern.codebook import drop_line_ends
from lantern.decoding import DecodingModels
from lantern.models.target import TargetModel
from lantern.models.transformer import rotary_table

EXACT = [name for name, parts in METHODS if not parts and name in ("eagle1", "eagle2", "coupled", "jacobi", "hybrid")]


@pytest.fixture(scope="module")
def lined() -> DecodingModels:
    """Of 11 codes, in four lines of four and an end."""
    return make_models(line_end=7)


@pytest.mark.parametrize(("temperature", "many_logits"), SETTINGS)
@pytest.mark.parametrize(("name", "parts"), METHODS)
def test_every_method_ends_every_line(lined, name, parts, temperature, many_logits, monkeypatch):
    """Nothing else stands there, and it stands nowhere else; a step may go beyond it."""
    monkeypatch.setattr(rules, "MANY_LOGITS", many_logits)
    decoder = make_decoder(lined, name, temperature, **parts)
    generation = decoder.generate(*make_batches(decoder, lined)[0])
    lines = generation.codes.view(3, 4, 5)
    assert (lines[..., 4] == 11).all() and (lines[..., :4] < 11).all()
    assert not generation.is_substituted.view(3, 4, 5)[..., 4].any()
    assert (generation.step_lengths.sum(1) == 20).all()


@pytest.mark.parametrize("name", ["eagle1", "lantern", "hybrid", "sjd", "zipar"])
def test_a_recorded_step_ends_lines_too(lined, name, tapes):  # noqa: F811
    decoder = make_decoder(lined, name)
    graphed = captured(decoder)
    for batch in make_batches(decoder, lined):
        assert_equal(graphed.generate(*batch), decoder.generate(*batch))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", EXACT)
def test_exact_methods_give_the_autoregressive_tokens(lined, name, temperature):
    decoder, slow = (make_decoder(lined, method, temperature) for method in (name, "autoregressive"))
    for batch in make_batches(decoder, lined):
        found, expected = decoder.generate(*batch), slow.generate(*batch)
        assert torch.equal(found.codes, expected.codes) == (name not in ("eagle1",) or temperature == 0)
        assert (found.target_forwards < 20).all()


def test_what_ends_a_line_is_drafted_where_it_stands(lined):
    """Jacobi and SJD guess it before the target has: from the first step on, drafts there are accepted."""
    for name in ("jacobi", "sjd"):
        decoder, seen = make_decoder(lined, name), []
        decoder.observer = lambda outcome, seen=seen: seen.append(outcome.proposal.tokens[:, 1:])
        batch = make_batches(decoder, lined)[0]
        state = decoder.start(*batch)
        decoder.run(state, 3)
        first = seen[0]  # of places 1, 2, 3, 4 (the end of the line), ...
        depths = decoder.drafter.tree.depths[0, 1:]
        at_end = first[:, (depths == 4) & (decoder.drafter.tree.ranks[0, 1:] == 0)]
        assert (at_end == 11).all() and (first[:, depths == 3] != 11).all()


def test_lines_of_another_number_than_their_codes():
    config = replace(make_models().target.config, grid=3, columns=5, line_end=0, vocab_size=9)
    assert (config.line_width, config.num_image_tokens, config.num_codes) == (6, 18, 8)
    assert [place for place in range(18) if config.ends_line(place)] == [5, 11, 17]
    model = TargetModel(config)
    logits = model.guided_logits(torch.zeros(1, 6, config.dim), 1.0, torch.arange(6))
    assert logits.isneginf().tolist() == 5 * [8 * [False] + [True]] + [8 * [True] + [False]]
    table = rotary_table(1, (2, 3), 4, 100.0)
    assert table[1:7].angle().tolist() == [[row, column] for row in (0, 1) for column in (0, 1, 2)]


def test_ends_are_dropped_where_there_are_some():
    tokens = torch.arange(6)
    assert drop_line_ends(tokens).tolist() == [0, 1, 3, 4] and drop_line_ends(tokens[:4]).tolist() == [0, 1, 2, 3]
