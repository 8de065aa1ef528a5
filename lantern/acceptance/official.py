"""The residual distribution in the LANTERN authors' code, which is needed to reproduce their numbers."""

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
    """Return the residual after a rejected draft, (..., vocab).

    Let t be the target distribution and p the distribution that the draft was sampled from. The residual is
    normalise(max(0, t - p)). For a deterministic draft it is t without the draft, normalised.

    In the paper, the residual is also 0 at the codes of the draft's relaxed set. The authors' code differs in two ways:

    - If the relaxed set has any code, t is first set to 0 at all k + 1 nearest codes of the draft. For LlamaGen's
      sampled drafts, p instead of t is set to 0 there.
    - If the residual would be 0 at all codes, the uniform distribution replaces it.

    Args:
        sets: acceptance that computed `merged`. Its table of nearest codes needs k + 1 columns.
        is_llamagen: True for LlamaGen's residual, False for Lumina-mGPT's.
        merged: one rejected draft per node.
        draft_probs: p, (..., vocab). None for a deterministic draft.

    Source: jadohu/LANTERN models/kv_variants/utils.py (evaluate_posterior, evaluate_posterior_v1).
    """
    token = merged.taken[..., -1]
    # The k + 1 nearest codes without the draft itself, which `nearest` puts last.
    wide = sets.nearest(token, sets.k + 1)[..., :-1]
    is_merged = merged.is_member.any(-1, keepdim=True)
    if draft_probs is not None and is_llamagen:
        draft_probs = draft_probs.scatter(-1, wide, torch.where(is_merged, 0.0, draft_probs.gather(-1, wide)))
    else:
        probs = probs.scatter(-1, wide, torch.where(is_merged, 0.0, probs.gather(-1, wide)))
    # A deterministic draft has p = 1, hence max(0, t - p) is t without it.
    residual = probs.scatter(-1, token[..., None], 0.0) if draft_probs is None else (probs - draft_probs).clamp(min=0)
    total = residual.sum(-1, keepdim=True)
    uniform = torch.full_like(residual, 1 / residual.shape[-1])
    tiny = torch.finfo(probs.dtype).tiny  # against 0 / 0 in the branch that is not taken
    return torch.where(total > 0, residual / total.clamp(min=tiny), uniform)
