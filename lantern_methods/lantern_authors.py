"""The residual distributions in the LANTERN authors' code, which are needed to reproduce their numbers.

Let t be the target distribution and p the distribution that a rejected draft was sampled from. The residual is max(0,
t - p). For a deterministic draft it is t without the draft.

In the paper, the residual is also 0 at the codes of the draft's relaxed set. The authors' code differs in two ways:

- If the relaxed set has any code, t is first set to 0 at all k + 1 nearest codes of the draft. For LlamaGen's sampled
  drafts, p instead of t is set to 0 there.
- If the residual would be 0 at all codes, the uniform distribution replaces it.

Source: jadohu/LANTERN models/kv_variants/utils.py (evaluate_posterior, evaluate_posterior_v1).
"""

from __future__ import annotations

import torch

from lantern.acceptance.base import Merged
from lantern.acceptance.relaxed_sets import RelaxedSets


def llamagen(sets: RelaxedSets, probs: torch.Tensor, merged: Merged, draft_probs: torch.Tensor | None) -> torch.Tensor:
    """Return LlamaGen's residual after one rejected draft per node, not yet normalised, (..., vocab)."""
    if draft_probs is None:
        return lumina(sets, probs, merged, None)
    return _residual(probs, merged, _without_nearest(sets, draft_probs, merged))


def lumina(sets: RelaxedSets, probs: torch.Tensor, merged: Merged, draft_probs: torch.Tensor | None) -> torch.Tensor:
    """Return the same of Lumina-mGPT."""
    return _residual(_without_nearest(sets, probs, merged), merged, draft_probs)


def _without_nearest(sets: RelaxedSets, probs: torch.Tensor, merged: Merged) -> torch.Tensor:
    """Return `probs` with 0 at the k + 1 nearest codes of drafts whose relaxed sets have any code."""
    token = merged.taken[..., -1:]
    wide = sets.codes_of(token[..., 0], sets.k + 1)[..., :-1]  # without the draft, which is the last
    has_code = merged.taken[..., :1] != token  # if A(x) has any code, it has the nearest one
    return probs.scatter(-1, wide, torch.where(has_code, 0.0, probs.gather(-1, wide)))


def _residual(probs: torch.Tensor, merged: Merged, draft_probs: torch.Tensor | None) -> torch.Tensor:
    # A deterministic draft has p = 1, hence max(0, t - p) is t without it.
    token = merged.taken[..., -1:]
    residual = probs.scatter(-1, token, 0.0) if draft_probs is None else (probs - draft_probs).clamp(min=0)
    return torch.where(residual.sum(-1, keepdim=True) > 0, residual, 1.0)
