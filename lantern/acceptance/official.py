"""The residual distribution in the LANTERN authors' code, which is needed to reproduce their numbers."""

from __future__ import annotations

import torch


def official_residual(
    is_llamagen: bool,
    probs: torch.Tensor,
    codes: torch.Tensor,
    has_code: torch.Tensor,
    draft_probs: torch.Tensor | None,
) -> torch.Tensor:
    """Return the residual after a rejected draft, not yet normalised, (..., vocab).

    Let t be the target distribution and p the distribution that the draft was sampled from. The residual is max(0, t -
    p). For a deterministic draft it is t without the draft.

    In the paper, the residual is also 0 at the codes of the draft's relaxed set. The authors' code differs in two ways:

    - If the relaxed set has any code, t is first set to 0 at all k + 1 nearest codes of the draft. For LlamaGen's
      sampled drafts, p instead of t is set to 0 there.
    - If the residual would be 0 at all codes, the uniform distribution replaces it.

    Args:
        is_llamagen: True for LlamaGen's residual, False for Lumina-mGPT's.
        codes: the k + 1 nearest codes of one rejected draft per node, then the draft, int64 (..., k + 2).
        has_code: whether the relaxed set of the draft has any code, (..., 1).
        draft_probs: p, (..., vocab). None for a deterministic draft.

    Source: jadohu/LANTERN models/kv_variants/utils.py (evaluate_posterior, evaluate_posterior_v1).
    """
    wide, token = codes[..., :-1], codes[..., -1:]
    if draft_probs is not None and is_llamagen:
        draft_probs = draft_probs.scatter(-1, wide, torch.where(has_code, 0.0, draft_probs.gather(-1, wide)))
    else:
        probs = probs.scatter(-1, wide, torch.where(has_code, 0.0, probs.gather(-1, wide)))
    # A deterministic draft has p = 1, hence max(0, t - p) is t without it.
    residual = probs.scatter(-1, token, 0.0) if draft_probs is None else (probs - draft_probs).clamp(min=0)
    return torch.where(residual.sum(-1, keepdim=True) > 0, residual, 1.0)
