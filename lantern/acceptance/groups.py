"""GSD: groups of codes about as probable as the draft."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from lantern.acceptance.base import Acceptance, Readings
from lantern.methods import MethodSpec

CODES_AT_ONCE = 1024  # whose distances to all others are held at once


class ProbabilityGroups(Acceptance):
    """The draft x is accepted with probability min(1, t(G) / p(G)), G being codes about as probable as x that the
    target embeds near x.

    G holds the codes from h ranks below x to h - 1 above it, in the target's order of probability, cut at the most
    probable one; x alone where fewer than h codes are below it. Of these it keeps the ones with |t(c) - t(x)| < p_max
    and a squared distance of their embeddings from that of x < d_max. Ties are ordered by code. x itself is emitted.

    The output distribution departs from the target's without a bound by a parameter: groups overlap, so that p f may
    exceed t anywhere.

    Args:
        embedding: the target's of its codes, (vocab, dim).
        parameters: h, half the width of a group, ranks; p_max, difference of probabilities; d_max, squared L2 distance.

    Source: GSD (arXiv 2508.07747; junhyukso/GSD@4216c7c). There distances count only where all ids of a group are at
    most 10,000, which tells codes from words in Lumina's vocabulary; in ours, which hold codes alone, they always do.
    """

    needs_rejection: ClassVar[bool] = True

    def __init__(self, embedding: torch.Tensor, **parameters: Any) -> None:
        super().__init__(**parameters)
        rows = embedding.detach().double()
        lengths, parts = rows.square().sum(-1), []
        for chunk in rows.split(CODES_AT_ONCE):
            distance = chunk.square().sum(-1, keepdim=True) + lengths - 2 * chunk @ rows.T
            parts.append(distance < self.d_max)
        self.is_near = torch.cat(parts)  # bool, (vocab, vocab)

    @classmethod
    def make(cls, spec: MethodSpec, read: Readings) -> ProbabilityGroups:
        """Needs the target's embedding.

        Raises:
            ValueError: there is none.
        """
        if read.embedding is None:
            raise ValueError(f"method {spec.method_id or spec.name} needs the target's token embedding, got none")
        return cls(read.embedding, h=spec.h, p_max=spec.p_max, d_max=spec.d_max)

    def relaxed_prob(self, probs: torch.Tensor, draft_probs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """s(x) = p(x) t(G) / p(G), so that the test of rejection, s(x) / p(x), is that of groups."""
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
        is_member &= self.is_near[tokens[..., None], codes.view_as(places)]
        target_mass, draft_mass = ((masses * is_member).sum(-1) for masses in (target_masses, draft_masses))
        own_draft = draft_probs.gather(-1, tokens)
        return torch.where(draft_mass > 0, own_draft * target_mass / draft_mass, own.squeeze(-1))
