"""GSD: acceptance by groups of codes with similar probability."""

from __future__ import annotations

import torch

from lantern.acceptance.base import Acceptance, Exact, Readings
from lantern.methods import MethodSpec

CODES_AT_ONCE = 1024  # number of codes whose distances to all others are in memory at once


class ProbabilityGroups(Acceptance):
    """GSD's acceptance: the draft x is accepted with probability min(1, t(G) / p(G)).

    The group G holds codes with similar probability and similar embedding to x. Take the codes from h ranks below x to
    h - 1 ranks above it, in the target's order of probability, cut off at the most probable code. Of these, G keeps the
    codes c with |t(c) - t(x)| < p_max whose embedding has a squared distance < d_max from the embedding of x. If fewer
    than h codes rank below x, G is x only. Ties are ordered by code. The emitted token is x itself.

    No parameter bounds the distance of the output distribution from the target's. Groups overlap, so that x may be
    emitted more often than t(x) at any code.

    Args:
        embedding: the target's code embeddings, (vocab, dim).
        h: half the width of a group, in ranks.
        p_max: bound of the difference of probabilities.
        d_max: bound of the squared L2 distance of embeddings.

    Source: GSD (arXiv 2508.07747; junhyukso/GSD@4216c7c). There, distances count only if all ids of a group are at most
    10,000, which separates codes from words in Lumina's vocabulary. Lantern's vocabularies hold codes only, so that
    distances always count.
    """

    def __init__(self, embedding: torch.Tensor, h: int, p_max: float, d_max: float) -> None:
        super().__init__()
        self.h = h
        self.p_max = p_max
        self.d_max = d_max
        rows = embedding.detach().double()
        lengths = rows.square().sum(-1)
        parts = []
        for chunk in rows.split(CODES_AT_ONCE):
            distance = chunk.square().sum(-1, keepdim=True) + lengths - 2 * chunk @ rows.T
            parts.append(distance < d_max)
        self.is_near = torch.cat(parts)  # bool, (vocab, vocab)

    @classmethod
    def make(cls, spec: MethodSpec, read: Readings) -> Acceptance:
        """Make the acceptance from the target's embedding. At temperature 0 it is exact.

        Raises:
            ValueError: there is no embedding.
        """
        if read.sampling.is_greedy:
            return Exact()
        if read.embedding is None:
            raise ValueError(f"method {spec.label} needs the target's token embedding, got none")
        return cls(read.embedding, spec["h"], spec["p_max"], spec["d_max"])

    def relaxed_prob(self, probs: torch.Tensor, draft_probs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return s(x) = p(x) t(G) / p(G), so that s(x) / p(x) is the acceptance ratio t(G) / p(G)."""
        vocab = probs.shape[-1]
        order = probs.argsort(dim=-1, stable=True)  # least probable first
        numbers = torch.arange(vocab, device=probs.device)
        ranks = torch.empty_like(order).scatter_(-1, order, numbers.expand_as(order))
        steps = torch.arange(-self.h, self.h, device=probs.device)
        group_ranks = ranks.gather(-1, tokens)[..., None] + steps  # (..., n, 2 h)
        is_inside = (group_ranks[..., :1] >= 0) & (group_ranks < vocab)
        codes = order.gather(-1, group_ranks.clamp(0, vocab - 1).flatten(-2))  # (..., n * 2 h)
        target_probs = probs.gather(-1, codes).view_as(group_ranks)
        group_draft_probs = draft_probs.gather(-1, codes).view_as(group_ranks)
        token_probs = probs.gather(-1, tokens)
        is_similar = (target_probs - token_probs[..., None]).abs() < self.p_max
        is_near = self.is_near[tokens[..., None], codes.view_as(group_ranks)]
        is_member = is_inside & is_similar & is_near
        target_mass = (target_probs * is_member).sum(-1)
        draft_mass = (group_draft_probs * is_member).sum(-1)
        token_draft = draft_probs.gather(-1, tokens)
        return torch.where(draft_mass > 0, token_draft * target_mass / draft_mass, token_probs)
