"""Verification against a mixture s of the target's distribution t and the drafts' p: the emitted token has the
distribution s, on chains and on trees.

A rejection leaves max(0, s - p), renormalised: for every mixture the same as max(0, t - p). Later siblings are verified
exactly against it, so that all of them together emit s. The test accepts 1 - TV(s, p) of the first drafts; no method
whose output is as near to t accepts more, since TV(t, p) <= TV(t, s) + TV(s, p), with equality on this line.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from lantern.acceptance.base import Acceptance, Exact

_EXACT = Exact()  # made outside of steps, so that torch.compile can trace them


class Ensemble(Acceptance):
    """s = w t + (1 - w) p, whose distance from t is TV = (1 - w) TV(t, p).

    Source: the static ensemble of DIVERSED (arXiv 2604.07622), `_speculative_sampling` of transformers 5.23. There
    temperature 0 compares with the mixture's most probable token; here it is exact.
    """

    needs_rejection: ClassVar[bool] = True

    def share(self, probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor | float:
        """Weight of t in s, a number or (..., 1)."""
        return self.weight

    def relaxed_prob(self, probs: torch.Tensor, draft_probs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """s(x)."""
        share = self.share(probs, draft_probs)
        return share * probs.gather(-1, tokens) + (1 - share) * draft_probs.gather(-1, tokens)

    def of_next_sibling(self) -> Acceptance:
        """Return exact acceptance: the residual already yields s."""
        return _EXACT


class Mixing(Ensemble):
    """s = t + l (p - t) with l = min(1, budget / TV(t, p)), whose distance from t is TV = min(budget, TV(t, p)): the
    largest acceptance of one draft for that total variation.

    Source: the aim of arXiv 2609.30474.
    """

    def share(self, probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
        """1 - l."""
        distance = (probs - draft_probs).abs().sum(-1, keepdim=True) / 2
        return 1 - (self.budget / distance.clamp(min=torch.finfo(probs.dtype).tiny)).clamp(max=1)
