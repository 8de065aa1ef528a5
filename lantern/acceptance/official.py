"""What the LANTERN authors' code leaves after a rejection, needed to reproduce their numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from lantern.acceptance.relaxed_sets import MergedSet, RelaxedSets


def official_residual(
    sets: RelaxedSets,
    is_llamagen: bool,
    probs: torch.Tensor,
    merged: MergedSet,
    draft_probs: torch.Tensor | None,
) -> torch.Tensor:
    """The authors' residual, (..., vocab).

    It differs from the paper's: if any prefix of neighbours qualified, the first k + 1 neighbours are zeroed, merged or
    not: in t for deterministic drafts and for Lumina-mGPT, but in p for LlamaGen's sampled drafts; and no mass left
    becomes uniform over all codes.

    Args:
        sets: with a table of k + 1 columns.
        is_llamagen: or Lumina-mGPT.
        probs: target distribution t, (..., vocab).
        merged: of the rejected draft.
        draft_probs: what it was drawn from, p, (..., vocab); None for a deterministic draft.

    Source: jadohu/LANTERN models/kv_variants/utils.py (evaluate_posterior, evaluate_posterior_v1).
    """
    token = merged.taken[..., -1]
    wide = sets.nearest(token, sets.k + 1)[..., :-1]
    is_merged = merged.is_member.any(-1, keepdim=True)
    if draft_probs is not None and is_llamagen:
        draft_probs = draft_probs.scatter(-1, wide, torch.where(is_merged, 0.0, draft_probs.gather(-1, wide)))
    else:
        probs = probs.scatter(-1, wide, torch.where(is_merged, 0.0, probs.gather(-1, wide)))
    left = probs.scatter(-1, token[..., None], 0.0) if draft_probs is None else (probs - draft_probs).clamp(min=0)
    total = left.sum(-1, keepdim=True)
    uniform = torch.full_like(left, 1 / left.shape[-1])
    return torch.where(total > 0, left / total.clamp(min=torch.finfo(probs.dtype).tiny), uniform)
