"""GSD (arXiv 2508.07747): relaxed acceptance that compares groups of similar codes instead of single codes."""

from __future__ import annotations

import torch
from typing_extensions import override

from lantern.acceptance.base import Acceptance, Exact
from lantern.methods import MethodSpec
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels

CODES_AT_ONCE = 1024  # rows of distances in memory at the same time; 128 MiB for 16,384 codes, in float64


class ProbabilityGroups(Acceptance):
    """GSD's acceptance: the draft x is accepted with probability min(1, t(G) / p(G)).

    t is the target distribution and p the distribution that x was sampled from. G is a group of codes that are similar
    to x. It is found in three steps:

    1. Sort all codes by t, least probable first, and codes of equal probability by their number.
    2. Take the h codes before x in this order, x itself, and up to h - 1 codes after x: the slice [rank - h : rank + h]
       of the authors' code. If fewer than h codes come before x, their slice is empty, and G holds only x.
    3. Of these codes, keep each code c that is close to x: |t(c) - t(x)| < p_max, and the squared L2 distance between
       their embeddings is below d_max.

    If x is accepted, the emitted token is x itself, not another code of G.

    No parameter bounds the distance of the output distribution from the target's, since groups of different drafts
    overlap.

    Source: GSD (junhyukso/GSD@4216c7c). The authors' code ignores distances if any id of a group
    exceeds 10,000, in order to separate codes from words in Lumina's vocabulary. Lantern's vocabularies hold no words,
    and distances always count.
    """

    def __init__(self, embedding: torch.Tensor, h: int, p_max: float, d_max: float) -> None:
        super().__init__()
        self.h = h
        self.p_max = p_max
        self.d_max = d_max
        # |a|^2 + |b|^2 - 2 a b loses digits if a and b are close, hence float64.
        rows = embedding.detach().double()
        lengths = rows.square().sum(-1)
        parts = []
        for chunk in rows.split(CODES_AT_ONCE):
            distance = chunk.square().sum(-1, keepdim=True) + lengths - 2 * chunk @ rows.T
            parts.append(distance < d_max)
        self.is_near = torch.cat(parts)  # bool, (vocab, vocab)

    @classmethod
    @override
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> Acceptance:
        if sampling.is_greedy:
            return Exact()  # s(x) is not asked for: drafts are compared with the most probable token
        return cls(models.target.token_embedding.weight, spec["h"], spec["p_max"], spec["d_max"])

    @override
    def relaxed_prob(self, probs: torch.Tensor, draft_probs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        vocab = probs.shape[-1]
        # s(x) = p(x) t(G) / p(G), since drafts are accepted with probability s(x) / p(x).
        order = probs.argsort(dim=-1, stable=True)
        numbers = torch.arange(vocab, device=probs.device)
        ranks = torch.empty_like(order).scatter_(-1, order, numbers.expand_as(order))  # the inverse of `order`
        steps = torch.arange(-self.h, self.h, device=probs.device)
        group_ranks = ranks.gather(-1, tokens)[..., None] + steps  # (..., n, 2 h)
        # The first of the 2 h ranks is below 0 if fewer than h codes are before x. Then no code counts, and p(G) = 0.
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
        # If p(G) = 0, s(x) = t(x), as for G = {x}.
        return torch.where(draft_mass > 0, token_draft * target_mass / draft_mass, token_probs)
