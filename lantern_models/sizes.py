"""Sizes of published models, and short forms of the shape of an image.

Snakemake imports this module to plan the workflow, so it must not import torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lantern.models.config import DraftConfig, TargetConfig

Sides = int | tuple[int, int]  # height and width of an image, or the side of a square

# Source: FoundationVision/LlamaGen@ce98ec4, autoregressive/models/gpt.py. XL is released for text to image. B to XXXL
# were made for classes, 1B to 7B for text.
LLAMAGEN_SIZES: dict[str, dict[str, int]] = {
    "B": {"dim": 768, "num_layers": 12, "num_heads": 12},
    "L": {"dim": 1024, "num_layers": 24, "num_heads": 16},
    "XL": {"dim": 1280, "num_layers": 36, "num_heads": 20},
    "XXL": {"dim": 1536, "num_layers": 48, "num_heads": 24},
    "XXXL": {"dim": 2560, "num_layers": 48, "num_heads": 40},
    "1B": {"dim": 2048, "num_layers": 22, "num_heads": 32},
    "3B": {"dim": 3200, "num_layers": 24, "num_heads": 32},
    "7B": {"dim": 4096, "num_layers": 32, "num_heads": 32},
}
# Fields of a `TargetConfig` in which a file must agree with what is expected, if it states them.
COMPARED_SIZES = ("dim", "num_layers", "num_heads", "vocab_size", "grid", "num_text_tokens", "caption_dim")
FFN_MULTIPLE = 256  # LlamaGen rounds the width of its feed-forward part up to a multiple of this


def shape_of(sides: int | Sequence[int]) -> tuple[int, int]:
    """Return (height, width) of `Sides`, or of the list that JSON makes of a pair."""
    height, width = (sides, sides) if isinstance(sides, int) else sides
    return height, width


def sides_of(shape: tuple[int, int]) -> Sides:
    """Return the short form of a shape, which for a square is its side."""
    return shape[0] if shape[0] == shape[1] else shape


def shape_fields(shape: tuple[int, int], small_shape: tuple[int, int] = (0, 0)) -> dict[str, int]:
    """Convert shapes into fields of a `TargetConfig`. `small_shape` is that of the preview, (0, 0) without one.

    8 lines of 12 codes give {"grid": 8, "columns": 12}, and 8 lines of 8 codes give {"grid": 8, "columns": 0}.
    """
    (height, width), (small_height, small_width) = shape, small_shape
    return {
        "grid": height,
        # 0 stands for a square, so that a square image has one form.
        "columns": 0 if width == height else width,
        "small_grid": small_height,
        "small_columns": 0 if small_width == small_height else small_width,
    }


def chameleon_draft(target: TargetConfig) -> DraftConfig:
    """Return the sizes of the draft model that LANTERN's authors published for Chameleon."""
    return replace(
        DraftConfig.of(target), num_embedded_ids=target.num_prompt_ids, has_attention_norm=True, has_qk_norm=True
    )
