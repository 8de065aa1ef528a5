"""Acceptance by mixtures: the emitted token follows a mixture s = w t + (1 - w) p of target and draft distribution.

`Ensemble` is that of DIVERSED (arXiv 2604.07622), `Mixing` has the objective of arXiv 2609.30474.

The first child of a node is tested against s in place of t. After a rejection the residual distribution is, for every
w, that of exact verification: max(0, s - p) = w max(0, t - p), renormalised. Later siblings are verified exactly
against it, so that the token emitted at a node with several children also follows s.

The first draft is accepted with probability 1 - TV(s, p), where TV is the total variation. At a given distance TV(t, s)
no rate is higher, since TV(t, p) <= TV(t, s) + TV(s, p), with equality for a mixture.
"""

from __future__ import annotations

import torch
from typing_extensions import override

from lantern.acceptance.base import Acceptance, Exact

_EXACT = Exact()  # made here, since torch.compile cannot trace a step that makes an acceptance


class Mixture(Acceptance):
    """The base class of mixtures. A subclass defines `share`."""

    def share(self, probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor | float:
        """Return w, a number or a tensor (..., 1). A smaller w accepts more drafts."""
        raise NotImplementedError

    @override
    def relaxed_prob(self, probs: torch.Tensor, draft_probs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        share = self.share(probs, draft_probs)
        return share * probs.gather(-1, tokens) + (1 - share) * draft_probs.gather(-1, tokens)

    @override
    def of_next_sibling(self) -> Acceptance:
        return _EXACT


class Ensemble(Mixture):
    """The mixture s = w t + (1 - w) p with a constant weight w, hence TV(s, t) = (1 - w) TV(t, p).

    Source: DIVERSED's static ensemble, `_speculative_sampling` of transformers 5.23. At temperature 0 that code
    compares drafts with the most probable token of the mixture. This class is exact at temperature 0.
    """

    weight: float

    @override
    def share(self, probs: torch.Tensor, draft_probs: torch.Tensor) -> float:
        return self.weight


class Mixing(Mixture):
    """The mixture s = w t + (1 - w) p as close to the draft distribution p as a budget of total variation allows.

    1 - w = min(1, budget / TV(t, p)), hence TV(s, t) = min(budget, TV(t, p)).
    """

    budget: float

    @override
    def share(self, probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
        distance = (probs - draft_probs).abs().sum(-1, keepdim=True) / 2
        # If t = p, TV is 0 and any weight gives s = t.
        tiny = torch.finfo(probs.dtype).tiny
        return 1 - (self.budget / distance.clamp(min=tiny)).clamp(max=1)
