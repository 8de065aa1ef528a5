"""Source pictures: pictures in the prompt, which GLM-Image edits as the text of the prompt says.

A prompt has a placeholder for each code of a source picture, which the code replaces. A *position* is the time, row and
column that the rotary embedding reads, see `lantern.models.adapter.grid_positions`. All codes of a picture have the
same time, and their rows and columns depend on its shape. Prompts with source pictures are therefore given as ids with
positions, int64 (batch, tokens, 4): id, time, row, column.
"""

from __future__ import annotations

from typing import Any

import torch


def place_sources(
    model: Any,
    ids: torch.Tensor,
    mask: torch.Tensor,
    grids: torch.Tensor,
    num_grids: torch.Tensor,
    codes: torch.Tensor,
) -> torch.Tensor:
    """Return prompts with source pictures, from what transformers' processor returns.

    Args:
        model: a `GlmImageForConditionalGeneration`.
        ids: ids of the prompts, padded on the left, int64 (batch, tokens).
        mask: True for prompt tokens, bool (batch, tokens).
        grids: duration (always 1), height and width of each grid of codes, int64 (grids, 3). For each prompt, the grids
            of its source pictures come first, then the grid of the image to generate.
        num_grids: number of grids of each prompt, int64 (batch,).
        codes: codes of all source pictures in the order of the placeholders, int64 (codes,).
    """
    is_begin, is_end = (ids == id for id in (model.config.image_start_token_id, model.config.image_end_token_id))
    # A token is a code if more pictures have begun than ended, and it begins none. The last token begins the image.
    is_code = (is_begin.cumsum(1) > is_end.cumsum(1)) & ~is_begin
    # Without the last grid, that of the image to generate.
    expected = [int(sizes[:-1].sum()) for sizes in grids.prod(1).split(num_grids.tolist())]
    if (found := is_code.sum(1).tolist()) != expected:
        raise ValueError(
            f"image_grid_thw must state the grids of the source pictures, which have {found} codes in the prompts, got "
            f"grids of {expected} codes; pass all outputs of the processor"
        )
    is_placeholder = ids == model.config.image_token_id
    if int(is_placeholder.sum()) != len(codes):
        raise ValueError(
            f"the prompts have {int(is_placeholder.sum())} placeholders of source pictures, so the pictures must have "
            f"as many codes, got the codes of {len(codes)}; pass all outputs of the processor"
        )
    positions, _ = model.model.get_rope_index(ids, grids, num_grids, mask)
    # The image begins at the position after the padded prompt, as it does without source pictures. Attention
    # depends only on differences of positions, so this changes no result.
    positions = positions + (ids.shape[1] - 1 - positions[..., -1:])
    return torch.stack([ids.masked_scatter(is_placeholder, codes.to(ids)), *positions], dim=-1)
