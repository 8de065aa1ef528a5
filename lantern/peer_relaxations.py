"""Relaxations of others than LANTERN: they change the test of rejection, not the set A(x) of codes that stand in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from lantern.methods import check_group

ANNEALING = 0.7  # nu
CODES_AT_ONCE = 1024  # whose distances to all others are held at once


@dataclass(frozen=True)
class DraftWeights:
    """COOL-SD: the draft x at place i of a chain is accepted with probability min(1, omega_i t(x) / p(x)).

    With this probability as f(x), the output distribution departs from the target's by TV = sum max(0, p f - t) at a
    node, the least that f allows: 0 where omega_i <= 1, at most 1 - 1 / omega_i elsewhere. It needs the matched
    residual.

    Attributes:
        omega: mean of the weights; COOL-SD's delta.
        fall: an annealed weight is exp(-fall) times the one before.

    Source: COOL-SD (arXiv 2601.09212), which has no public code; that omega is the mean is second-hand.
    """

    omega: float
    fall: ClassVar[float] = 0.0

    def weights(self, length: int) -> list[float]:
        """omega_i of a chain of so many drafts, first to last."""
        values = [math.exp(-self.fall * place) for place in range(length)]
        return [self.omega * length * value / sum(values) for value in values]


class ConstantWeights(DraftWeights):
    """Every draft has the weight omega."""


class AnnealedWeights(DraftWeights):
    """The first draft has the largest weight."""

    fall = ANNEALING


class ReversedWeights(DraftWeights):
    """The last draft has the largest weight: the control."""

    fall = -ANNEALING


@dataclass(frozen=True)
class ProbabilityGroup:
    """GSD: the draft x is accepted with probability min(1, t(G) / p(G)), G being codes about as probable as x that the
    target embeds near x.

    G holds the codes from h ranks below x to h - 1 above it, in the target's order of probability, cut at the most
    probable one; x alone where fewer than h codes are below it. Of these it keeps the ones with |t(c) - t(x)| < p_max
    and a squared distance of their embeddings from that of x < d_max. Ties are ordered by code. x itself is emitted.

    The output distribution departs from the target's without a bound by a parameter: groups overlap, so that p f may
    exceed t anywhere.

    Attributes:
        h: half the width of a group, ranks.
        p_max: difference of probabilities.
        d_max: squared L2 distance of the rows of the target's token embedding.

    Raises:
        ValueError: h < 1, or a bound <= 0.

    Source: GSD (arXiv 2508.07747; junhyukso/GSD@4216c7c). There distances count only where all ids of a group are at
    most 10,000, which tells codes from words in Lumina's vocabulary; in ours, which hold codes alone, they always do.
    """

    h: int
    p_max: float
    d_max: float

    def __post_init__(self) -> None:
        check_group(h=self.h, p_max=self.p_max, d_max=self.d_max)

    def near_codes(self, embedding: torch.Tensor) -> torch.Tensor:
        """Which codes are nearer to each other than d_max: bool (vocab, vocab), for the embedding (vocab, dim)."""
        rows = embedding.detach().double()
        lengths, parts = rows.square().sum(-1), []
        for chunk in rows.split(CODES_AT_ONCE):
            distance = chunk.square().sum(-1, keepdim=True) + lengths - 2 * chunk @ rows.T
            parts.append(distance < self.d_max)
        return torch.cat(parts)

    def surrogate(
        self, probs: torch.Tensor, draft_probs: torch.Tensor, tokens: torch.Tensor, is_near: torch.Tensor
    ) -> torch.Tensor:
        """s(x) = p(x) t(G) / p(G), so that the test of rejection, s(x) / p(x), is that of groups.

        Args:
            probs: target distribution, (..., vocab).
            draft_probs: what x is drawn from, (..., vocab).
            tokens: int64, (..., n): drafts x.
            is_near: of `near_codes`.

        Returns:
            (..., n).
        """
        order = probs.argsort(dim=-1, stable=True)  # least probable first
        numbers = torch.arange(probs.shape[-1], device=probs.device)
        ranks = torch.empty_like(order).scatter_(-1, order, numbers.expand_as(order))
        steps = torch.arange(-self.h, self.h, device=probs.device)
        places = ranks.gather(-1, tokens)[..., None] + steps  # (..., n, 2 h)
        is_inside = (places[..., :1] >= 0) & (places < len(numbers))
        codes = order.gather(-1, places.clamp(0, len(numbers) - 1).flatten(-2))
        target_masses, draft_masses = (values.gather(-1, codes).view_as(places) for values in (probs, draft_probs))
        own = probs.gather(-1, tokens)[..., None]
        is_member = is_inside & ((target_masses - own).abs() < self.p_max)
        is_member &= is_near[tokens[..., None], codes.view_as(places)]
        target_mass, draft_mass = ((masses * is_member).sum(-1) for masses in (target_masses, draft_masses))
        own_draft = draft_probs.gather(-1, tokens)
        return torch.where(draft_mass > 0, own_draft * target_mass / draft_mass, own.squeeze(-1))


PeerRelaxation = DraftWeights | ProbabilityGroup
