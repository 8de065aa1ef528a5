"""Figure (e): images whose tokens are all replaced by a near code or by a random code, to see if near codes look alike.

The distance of two codes is measured between their vectors in the tokenizer's codebook. PSNR = -10 log10(mean squared
error) for intensities in [0, 1].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure

from lantern.codebook import ImageModel
from lantern.prompts import Prompt
from lantern.records import GenerationRecords
from lantern_pipeline.data.image_files import code_positions, decode_images, to_pixels
from lantern_pipeline.figures.image_grid import Pictures, draw_pictures
from lantern_pipeline.measure.speed.speedups import BASELINE
from lantern_pipeline.tables.summary import MetricsSection

RANKS = (1, 10, 100)
MOST_TOKENS = 6144  # tokens are decoded five times each, and a VQ-16 takes 5 s for 256 tokens on a CPU core
SMALLEST_ERROR = 1e-10  # lower bound of the mean squared error, so that equal images have a finite PSNR


def draw_latent_proximity(
    records: Mapping[str, GenerationRecords],
    prompts: Sequence[Prompt],
    tokenizer: ImageModel,
    nearest_codes: torch.Tensor,
    settings: MetricsSection,
    seed: int,
) -> Figure:
    """Draw what `select_proximity` returns for the images of autoregressive decoding."""
    codes, num_rows = records[BASELINE].codes, settings["proximity_prompts"]
    return draw_pictures(**select_proximity(codes, prompts, tokenizer, nearest_codes, num_rows=num_rows, seed=seed))


def select_proximity(
    codes: torch.Tensor,
    prompts: Sequence[Prompt],
    tokenizer: ImageModel,
    nearest_codes: torch.Tensor,
    *,
    num_rows: int,
    seed: int,
) -> Pictures:
    """Replace every token of images by other codes, decode them, and return the arguments of `draw_pictures`.

    A row shows one image: the original, then every token replaced by its 1st, 10th and 100th nearest code, then by a
    random other code. The notes of the last row are mean PSNRs to the originals, over all images used.

    Args:
        codes: tokens of the images, (images, tokens). Only the first images are used, with at most MOST_TOKENS tokens
            in total, but at least the `num_rows` images that are shown.
        nearest_codes: (vocab, columns), nearest first.
    """
    vocab, num_ranks = nearest_codes.shape
    codes = codes[: max(num_rows, MOST_TOKENS // codes.shape[1])].long()
    codes = codes[:, code_positions(tokenizer, codes).flatten()]  # without line ends and preview
    # A table that is too short for a rank shows its farthest code instead, once.
    ranks = sorted({min(rank, num_ranks) for rank in RANKS})
    generator = torch.Generator().manual_seed(seed)
    # An offset of 1 to vocab - 1, modulo vocab, is a uniform code other than the original.
    offsets = torch.randint(1, vocab, codes.shape, generator=generator)
    variants = [*(nearest_codes[codes, rank - 1].long() for rank in ranks), (codes + offsets) % vocab]
    num_rows, original = min(num_rows, len(codes)), decode_images(tokenizer, codes)
    shown, quality = [to_pixels(original[:num_rows])], [""]
    for variant in variants:
        images = decode_images(tokenizer, variant)
        # Intensities in [-1, 1] are twice as far apart as in [0, 1].
        errors = ((images - original) / 2).square().mean((1, 2, 3)).clamp(min=SMALLEST_ERROR)
        shown.append(to_pixels(images[:num_rows]))
        quality.append(f"{float((-10 * errors.log10()).mean()):.1f} dB")
    return {
        "images": np.stack(shown, axis=1),
        "row_titles": [prompt.text for prompt in prompts[:num_rows]],
        "column_titles": ["original", *(f"{_ordinal(rank)} nearest\ncode" for rank in ranks), "random\ncode"],
        "notes": [[""] * len(quality)] * (num_rows - 1) + [quality],
        "note_title": f"PSNR, {len(codes)} images",
    }


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
