"""Source pictures: pictures in the prompt, which GLM-Image edits as the text of the prompt says.

A prompt has a placeholder for each code of a source picture. The codes replace the placeholders. The positions of the
codes are two-dimensional, and depend on the height and width of the picture. Prompts with source pictures are therefore
given as ids with positions. A position consists of the time, row and column that the rotary embedding reads, see
`lantern.models.adapter.grid_positions`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


def place_sources(
    model: Any,
    ids: torch.Tensor,
    mask: torch.Tensor,
    grids: torch.Tensor,
    num_grids: torch.Tensor,
    codes: torch.Tensor,
) -> torch.Tensor:
    """Replace the placeholders in prompts by the codes of source pictures, and compute the positions of all tokens.

    All positions are shifted so that the generated image begins at the position after the padded prompt, as it does
    without source pictures. The shift changes no result, since attention depends only on differences of positions.

    Args:
        model: a `GlmImageForConditionalGeneration` of transformers.
        ids: ids of the prompts, padded on the left, int64 (batch, tokens).
        mask: True for prompt tokens, bool (batch, tokens).
        grids: duration (always 1), height and width of each grid of codes, int64 (grids, 3). For each prompt, the grids
            of its source pictures come first, then the grid of the image to generate.
        num_grids: number of grids of each prompt, int64 (batch,).
        codes: codes of all source pictures in the order of the placeholders, int64 (codes,).

    Returns:
        id, time, row and column of each token, int64 (batch, tokens, 4).

    Raises:
        ValueError: the number of codes is not the number of placeholders, or the grids of a prompt's source pictures
            have another total size.
    """
    is_begin, is_end = (ids == id for id in (model.config.image_start_token_id, model.config.image_end_token_id))
    is_code = (is_begin.cumsum(1) > is_end.cumsum(1)) & ~is_begin
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
    positions = positions + (ids.shape[1] - 1 - positions[..., -1:])
    return torch.stack([ids.masked_scatter(is_placeholder, codes.to(ids)), *positions], dim=-1)


def codes_at_target(prompts: torch.Tensor, mask: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """Return the codes of each prompt's first source picture, scaled to the size of the image to generate.

    `SourceJacobiDrafter` uses them as drafts. Each position of the image gets the source code nearest to the same place
    (nearest-neighbour scaling).

    Args:
        prompts: prompts with source pictures, from `place_sources`, int64 (batch, tokens, 4).
        mask: True for prompt tokens, bool (batch, tokens).
        shape: height and width, in codes, of the image to generate.

    Returns:
        int64 (batch, height * width).
    """
    scaled = []
    for prompt, is_seen in zip(prompts, mask, strict=True):
        ids, times, rows, _ = prompt[is_seen].unbind(1)
        _, group, sizes = times.unique_consecutive(return_inverse=True, return_counts=True)
        is_first = group == (sizes > 1).int().argmax()  # only the codes of a picture share a time
        height = int((rows - times)[is_first].max()) + 1
        source = ids[is_first].view(1, 1, height, -1).double()
        scaled.append(F.interpolate(source, shape, mode="nearest-exact").long().flatten())
    return torch.stack(scaled)
