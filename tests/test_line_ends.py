"""A token of its own at the end of every line of codes: how it is drafted, and where it stands."""

from __future__ import annotations

from dataclasses import replace

import torch
from test_every_method import decoder_of, lined, make_batches  # noqa: F401

from conftest import make_models
from lantern.codebook import drop_line_ends
from lantern.models.target import TargetModel
from lantern.models.transformer import rotary_table


def test_what_ends_a_line_is_drafted_where_it_stands(lined):  # noqa: F811
    """Jacobi and SJD guess it before the target has: from the first step on, drafts there are accepted."""
    for name in ("jacobi", "sjd"):
        decoder, seen = decoder_of(lined, name), []
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
