"""Verification by rejection: a draft x ~ p is accepted with probability min(1, s(x) / p(x)); a rejection leaves a
residual distribution, with which the next sibling is tried, and from which the target draws where none is accepted.

Without relaxation, s(x) = t(x), the emitted token has the target's distribution.

Source: Leviathan et al. 2023 (arXiv 2211.17192); siblings: Miao et al. 2024 (arXiv 2305.09781); the matched residual:
COOL-SD (arXiv 2601.09212).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F

from lantern.acceptance.base import Acceptance, Choice, Exact, Merged, Verifier, token_of
from lantern.acceptance.official import official_residual
from lantern.draft_tree import of_all_nodes
from lantern.methods import OFFICIAL_RESIDUALS
from lantern.noise import NoiseField
from lantern.step import Proposal, Scores

NO_TOKEN = -2  # chosen where no child is accepted; a missing draft is -1


class Tried(NamedTuple):
    """One sibling's turn at some nodes.

    Attributes:
        relaxed_prob: (..., 1): s(x).
        token_draft: (..., 1): p(x) among the codes not drawn yet; 1 for a deterministic draft.
        is_tried: bool, (..., 1): whether there is a draft.
        residual: (..., vocab): the target distribution once x is rejected.
    """

    relaxed_prob: torch.Tensor
    token_draft: torch.Tensor
    is_tried: torch.Tensor
    residual: torch.Tensor


@dataclass(frozen=True)
class Rejection:
    """The test of rejection, and what it leaves.

    Attributes:
        acceptance: gives s(x).
        residual: "paper": t becomes normalise(max(0, t~ - p)), t~ being t with the mass that x stands for moved onto x.
            "official", "official_lumina": what the authors' code does, see `official_residual`. "matched": t becomes
            normalise(max(0, t - p f)), f(x) being the probability with which x is accepted: the least total variation
            from t that f allows, and one residual for all x.
    """

    acceptance: Acceptance = field(default_factory=Exact)
    residual: str = "paper"

    @property
    def has_one_residual(self) -> bool:
        """Whether the residual of sampled drafts is the same whichever was rejected."""
        return self.residual == "matched" or not self.acceptance.moves_mass

    def at(self, depths: torch.Tensor) -> Rejection:
        """The rejection at nodes of these depths, int64 (nodes,)."""
        return replace(self, acceptance=self.acceptance.at(depths))

    def accepted_mass(self, probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
        """p(x) f(x) of every code x: the probability that x is drafted and accepted; all (..., vocab)."""
        return torch.minimum(draft_probs, self.acceptance.relaxed_prob_of_all(probs, draft_probs))

    def residual_probs(
        self,
        probs: torch.Tensor,
        merged: Merged | None,
        draft_probs: torch.Tensor | None,
        is_tried: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Distribution after x was rejected; `probs` where it was not even tried.

        Args:
            probs: target distribution, (..., vocab).
            merged: of x; not read where `has_one_residual` and drafts are sampled.
            draft_probs: what x was drawn from, (..., vocab); None for a deterministic draft.
            is_tried: bool, (..., 1); None is everywhere.
        """
        is_tried = torch.ones_like(probs[..., :1], dtype=torch.bool) if is_tried is None else is_tried
        if self.residual in OFFICIAL_RESIDUALS and self.acceptance.moves_mass:
            left = official_residual(self.acceptance, self.residual == "official", probs, merged, draft_probs)
            return torch.where(is_tried, left, probs)
        if draft_probs is None:
            left = probs.scatter(-1, merged.taken, 0.0)
        elif self.residual == "matched":
            left = (probs - self.accepted_mass(probs, draft_probs)).clamp_(min=0)
        elif not self.acceptance.moves_mass:
            left = (probs - draft_probs).clamp_(min=0)
        else:
            moved = probs.scatter(-1, merged.taken, 0.0)
            moved.scatter_(-1, merged.taken[..., -1:], merged.relaxed_prob)
            left = moved.sub_(draft_probs).clamp_(min=0)
        total = left.sum(-1, keepdim=True)
        # Nothing left means that the rejection had probability 0: rounding. Stay inside the filtered support.
        return torch.where((total > 0) & is_tried, left.div_(total), probs)

    def try_siblings(
        self, probs: torch.Tensor, children: torch.Tensor, draft_probs: torch.Tensor | None
    ) -> Iterator[Tried]:
        """Tries the children of every node in order, int64 (..., m), -1 for none, each as if those before it were
        rejected, from the target distribution, (..., vocab), and the one that the children were drawn from without
        replacement, None for deterministic drafts, whose p is a point mass.
        """
        tokens, is_drafted = children.clamp(min=0), children >= 0
        draft_probs, acceptance = None if draft_probs is None else draft_probs.clone(), self.acceptance
        for rank, codes in enumerate(acceptance.codes_of(tokens).unbind(-2)):
            merged = acceptance.merge(probs, draft_probs, codes)
            token, is_tried = codes[..., -1:], is_drafted[..., rank : rank + 1]
            if draft_probs is None:
                token_draft = torch.ones_like(merged.relaxed_prob)
            else:
                token_draft = draft_probs.gather(-1, token)
                # A token drawn although its probability is 0 (fewer survivors of the filters than children) is none.
                is_tried = is_tried & (token_draft > 0)
            probs, acceptance = self.residual_probs(probs, merged, draft_probs, is_tried), acceptance.of_next_sibling()
            yield Tried(merged.relaxed_prob, token_draft, is_tried, probs)
            if draft_probs is not None:
                draft_probs.scatter_(-1, token, token_draft * ~is_drafted[..., rank : rank + 1])
                draft_probs /= draft_probs.sum(-1, keepdim=True)  # 0 / 0 where all is drawn: nan is not > 0 either

    def accept(
        self, probs: torch.Tensor, children: torch.Tensor, draft_probs: torch.Tensor | None, uniforms: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Accepts the first child x with u p(x) <= s(x), u in (0, 1) being the uniforms, shaped as children; other
        arguments as in `try_siblings`, of (batch, inner) nodes.

        Returns:
            (rank of the accepted child, m for none, int64 (batch, inner); distribution of the emitted token where none
            is accepted, (batch, inner, vocab), elsewhere without meaning).
        """
        tried = list(self.try_siblings(probs, children, draft_probs))
        if not tried:
            return children.sum(-1), probs
        relaxed_prob, token_draft, is_tried = (torch.cat(part, dim=-1) for part in list(zip(*tried, strict=True))[:3])
        fits = is_tried & (uniforms * token_draft <= relaxed_prob) & (relaxed_prob > 0)
        return F.pad(fits, (0, 1), value=True).byte().argmax(-1), tried[-1].residual


def accept_chain(
    probs: Sequence[torch.Tensor], tokens: Sequence[int], draft_probs: Sequence[torch.Tensor], uniforms: Sequence[float]
) -> tuple[int, torch.Tensor]:
    """Verify one chain in plain Python, as a test oracle.

    Args:
        probs: target distributions, (vocab,), one more than drafts: after the root and after each draft.
        tokens: the drafts x.
        draft_probs: distributions that they were sampled from, (vocab,).
        uniforms: a uniform number per draft.

    Returns:
        (number of accepted drafts, distribution of the token that follows them, (vocab,)).
    """
    for place, (x, t, p, u) in enumerate(zip(tokens, probs, draft_probs, uniforms, strict=False)):
        if u * p[x] > t[x] or t[x] == 0:
            left = (t - p).clamp(min=0)
            return place, left / left.sum()
    return len(tokens), probs[len(tokens)]


class ByRejection(Verifier):
    """Children are accepted one after the other, see `Rejection`."""

    noise_streams: ClassVar[tuple[str, ...]] = ("accept",)
    draws_target_tokens: ClassVar[bool] = False

    def __init__(self, rejection: Rejection) -> None:
        self.rejection = rejection

    def verify_all(self, scores: Scores, proposal: Proposal) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tries nothing at nodes that have no children."""
        tree, inner = proposal.tree, proposal.tree.parent_nodes
        if inner is None:
            return super().verify_all(scores, proposal)
        weights, positions = scores.weights.index_select(1, inner), scores.positions.index_select(1, inner)
        choice = self._try(weights, positions, scores.noise, proposal.children, proposal.draft_probs)
        best, own = scores.keys.max(-1)
        own, best = own.index_copy(1, inner, choice.own), best.index_copy(1, inner, choice.best)
        chosen = of_all_nodes(choice.chosen, tree, NO_TOKEN).gather(1, tree.parents.expand(own.shape))
        return chosen == proposal.tokens, own, best

    def verify_nodes(self, scores: Scores, children: torch.Tensor, draft_probs: torch.Tensor | None) -> Choice:
        """The first accepted draft, or a token of the residual."""
        return self._try(scores.weights, scores.positions, scores.noise, children, draft_probs)

    def _try(
        self,
        weights: torch.Tensor,
        positions: torch.Tensor,
        noise: NoiseField,
        children: torch.Tensor,
        draft_probs: torch.Tensor | None,
    ) -> Choice:
        uniforms = noise.uniform(positions, children.shape[-1])
        rank, residual = self.rejection.accept(weights.softmax(-1), children, draft_probs, uniforms)
        best, own = residual.log_().add_(noise.gumbel("target", positions)).max(-1)
        return Choice(token_of(rank, children, torch.full_like(own, NO_TOKEN)), own, best)
