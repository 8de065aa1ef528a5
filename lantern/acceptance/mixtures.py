"""Verification against a mixture s of the target distribution t and the draft distribution p.

The emitted token has the distribution s, on chains and on trees.

The residual distribution after a rejection is max(0, s - p), renormalised. For every mixture this equals max(0, t - p),
renormalised. Later siblings are verified exactly against it, so that all siblings together emit s. The first draft is
accepted with probability 1 - TV(s, p). No method whose output distribution has the same distance from t accepts more,
since TV(t, p) <= TV(t, s) + TV(s, p), and a mixture reaches equality.
"""

from __future__ import annotations

import torch

from lantern.acceptance.base import Acceptance, Exact

_EXACT = Exact()  # made here, since torch.compile cannot trace a step that makes an acceptance


class Mixture(Acceptance):
    """The base class of mixtures of t and p. A subclass defines the weight of t."""

    def share(self, probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor | float:
        """Return the weight of t in s, a number or (..., 1)."""
        raise NotImplementedError

    def relaxed_prob(self, probs: torch.Tensor, draft_probs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return s(x) of sampled drafts."""
        share = self.share(probs, draft_probs)
        return share * probs.gather(-1, tokens) + (1 - share) * draft_probs.gather(-1, tokens)

    def of_next_sibling(self) -> Acceptance:
        """Return exact acceptance: the residual already yields s."""
        return _EXACT


class Ensemble(Mixture):
    """A mixture with a constant weight: s = w t + (1 - w) p, so that TV(s, t) = (1 - w) TV(t, p).

    Attributes:
        weight: w.

    Source: the static ensemble of DIVERSED (arXiv 2604.07622), `_speculative_sampling` of transformers 5.23. At
    temperature 0 that code compares drafts with the most probable token of the mixture. This class is exact at
    temperature 0.
    """

    weight: float

    def share(self, probs: torch.Tensor, draft_probs: torch.Tensor) -> float:
        """Return w."""
        return self.weight


class Mixing(Mixture):
    """The mixture with the largest acceptance of one draft for a given total variation.

    s = t + l (p - t) with l = min(1, budget / TV(t, p)), so that TV(s, t) = min(budget, TV(t, p)).

    Attributes:
        budget: bound of the total variation.

    Source: the aim of arXiv 2609.30474.
    """

    budget: float

    def share(self, probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
        """Return 1 - l, (..., 1)."""
        distance = (probs - draft_probs).abs().sum(-1, keepdim=True) / 2
        tiny = torch.finfo(probs.dtype).tiny
        return 1 - (self.budget / distance.clamp(min=tiny)).clamp(max=1)
