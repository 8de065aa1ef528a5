"""Figure (e): near codes."""

import math

import pytest
import torch

from figure_tables import Mosaic
from lantern.prompts import Prompt
from lantern_pipeline.figures import latent_proximity
from lantern_pipeline.figures.latent_proximity import select_proximity

PROMPTS = [Prompt(f"p{i}", f"prompt {i}") for i in range(3)]
VOCAB = 8


def select(codes, columns, seed=0):
    # the n-th nearest code of c is c + n, modulo the vocabulary
    table = (torch.arange(VOCAB)[:, None] + torch.arange(1, columns + 1)) % VOCAB
    return select_proximity(codes, PROMPTS, Mosaic(), table, num_rows=2, seed=seed)


def test_every_token_is_replaced_and_psnr_is_over_all_images():
    codes = torch.zeros(3, 4, dtype=torch.int32)
    grid = select(codes, columns=7)
    assert grid.column_titles == ["original", "1st nearest\ncode", "7th nearest\ncode", "random\ncode"]
    assert grid.row_titles == ["prompt 0", "prompt 1"]
    assert (grid.images[:, 0] == 0).all()
    assert (grid.images[:, 1] == 32).all()  # a code is a quarter of the range of 2, hence an eighth of 255
    assert grid.notes[0] == [""] * 4
    assert grid.notes[1][:3] == ["", f"{-20 * math.log10(1 / 8):.1f} dB", f"{-20 * math.log10(7 / 8):.1f} dB"]
    assert grid.note_title == "PSNR, 3 images"


def test_random_codes_are_others_and_follow_the_seed():
    codes = torch.arange(12, dtype=torch.int32).reshape(3, 4) % VOCAB
    first, again, other = (select(codes, columns=1, seed=seed).images[:, -1] for seed in (3, 3, 4))
    assert (first == again).all()
    assert (first != other).any()
    original = select(codes, columns=1).images[:, 0]
    assert (first != original).all()


def test_no_more_images_are_decoded_than_allowed(monkeypatch):
    monkeypatch.setattr(latent_proximity, "MOST_TOKENS", 11)
    codes = torch.tensor([[0] * 4, [1] * 4, [7] * 4])
    assert select(codes, columns=1).note_title == "PSNR, 2 images"
    monkeypatch.setattr(latent_proximity, "MOST_TOKENS", 1)
    assert select(codes, columns=1).note_title == "PSNR, 2 images"  # the rows that are shown


def test_foreign_codes_are_rejected():
    with pytest.raises(ValueError, match="codes must be below 8"):
        select(torch.full((3, 4), 8), columns=2)
