"""Verification by rejection sampling.

A draft x ~ p is accepted with probability min(1, s(x) / p(x)). After a rejection, the *residual* distribution replaces
the target distribution. The next sibling is tested against it, and if no sibling is accepted, the emitted token is
sampled from it. Without relaxation, s(x) = t(x), and the emitted token has the target's distribution.

Source: Leviathan et al. 2023 (arXiv 2211.17192); siblings: Miao et al. 2024 (arXiv 2305.09781); the matched residual:
COOL-SD (arXiv 2601.09212).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F

from lantern.acceptance.base import Acceptance, Choice, Exact, Merged, Verifier, token_of
from lantern.acceptance.official import official_residual
from lantern.acceptance.relaxed_sets import MergedSet, RelaxedSets
from lantern.draft_tree import of_all_nodes
from lantern.methods import OFFICIAL_RESIDUALS
from lantern.noise import NoiseField
from lantern.step import Proposal, Scores

NO_TOKEN = -2  # the chosen token if no child is accepted; -1 marks a missing draft


class Tried(NamedTuple):
    """The test of one sibling at some nodes.

    Attributes:
        relaxed_prob: s(x), (..., 1).
        token_draft: p(x), renormalised over the codes that are not sampled yet, (..., 1). 1 for a deterministic draft.
        is_tried: whether there is a draft, bool (..., 1).
        residual: target distribution after x is rejected, (..., vocab).
    """

    relaxed_prob: torch.Tensor
    token_draft: torch.Tensor
    is_tried: torch.Tensor
    residual: torch.Tensor


@dataclass(frozen=True)
class Rejection:
    """The rejection test, and the residual distribution after a rejection.

    Attributes:
        acceptance: gives s(x).
        residual: kind of residual. "paper" is normalise(max(0, t~ - p)), with t~ from `Acceptance.move_mass`.
            "official" and "official_lumina" are the residuals of the authors' code, see `official_residual`. "matched"
            is normalise(max(0, t - p f)), where f(x) is the probability that x is accepted. It gives the least total
            variation from t that f allows, and is the same for all x.
    """

    acceptance: Acceptance = field(default_factory=Exact)
    residual: str = "paper"

    @property
    def has_one_residual(self) -> bool:
        """Whether the residual of sampled drafts is the same for every rejected draft."""
        return self.residual == "matched" or self.acceptance.has_one_residual()

    def at(self, depths: torch.Tensor) -> Rejection:
        """Return the rejection test at nodes of given depths, int64 (nodes,)."""
        return replace(self, acceptance=self.acceptance.at(depths))

    def accepted_mass(self, probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
        """Return the probability p(x) f(x) that x is drafted and accepted, for every code x, (..., vocab).

        Args:
            probs: target distribution, (..., vocab).
            draft_probs: distribution that x is sampled from, (..., vocab).
        """
        return torch.minimum(draft_probs, self.acceptance.relaxed_prob_of_all(probs, draft_probs))

    def residual_probs(
        self,
        probs: torch.Tensor,
        merged: Merged | None,
        draft_probs: torch.Tensor | None,
        is_tried: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the target distribution after draft x is rejected.

        Args:
            probs: target distribution, (..., vocab).
            merged: s(x) of the draft. None only if `has_one_residual` and the draft is sampled.
            draft_probs: distribution that x was sampled from, (..., vocab). None for a deterministic draft.
            is_tried: nodes that had a draft to try, bool (..., 1). The others keep `probs`. None for all nodes.
        """
        if is_tried is None:
            is_tried = torch.ones_like(probs[..., :1], dtype=torch.bool)
        sets = self.acceptance
        is_official = self.residual in OFFICIAL_RESIDUALS
        if is_official and isinstance(sets, RelaxedSets) and isinstance(merged, MergedSet):
            residual = official_residual(sets, self.residual == "official", probs, merged, draft_probs)
            return torch.where(is_tried, residual, probs)
        if draft_probs is None:
            residual = probs.scatter(-1, cast("Merged", merged).taken, 0.0)
        elif self.residual == "matched":
            residual = (probs - self.accepted_mass(probs, draft_probs)).clamp_(min=0)
        else:
            residual = (self.acceptance.move_mass(probs, merged) - draft_probs).clamp_(min=0)
        total = residual.sum(-1, keepdim=True)
        # The total is 0 only if the rejection had probability 0 and happened by rounding. `probs` respects the filters.
        return torch.where((total > 0) & is_tried, residual.div_(total), probs)

    def try_siblings(
        self, probs: torch.Tensor, children: torch.Tensor, draft_probs: torch.Tensor | None
    ) -> Iterator[Tried]:
        """Yield the test of each child in order, given that all earlier children were rejected.

        Args:
            probs: target distribution, (..., vocab).
            children: drafted tokens of every node, int64 (..., m). -1 marks a missing draft.
            draft_probs: distribution that the children were sampled from without replacement, (..., vocab). None for
                deterministic drafts, for which p is a point mass.
        """
        acceptance = self.acceptance
        if draft_probs is not None:
            draft_probs = draft_probs.clone()
        for rank, codes in enumerate(acceptance.codes_of(children.clamp(min=0)).unbind(-2)):
            token = codes[..., -1:]
            is_drafted = children[..., rank : rank + 1] >= 0
            merged = acceptance.merge(probs, draft_probs, codes)
            if draft_probs is None:
                token_draft = torch.ones_like(merged.relaxed_prob)
                is_tried = is_drafted
            else:
                token_draft = draft_probs.gather(-1, token)
                # A token of probability 0 does not count: the filters left fewer codes than the node has children.
                is_tried = is_drafted & (token_draft > 0)
            probs = self.residual_probs(probs, merged, draft_probs, is_tried)
            acceptance = acceptance.of_next_sibling()
            yield Tried(merged.relaxed_prob, token_draft, is_tried, probs)
            if draft_probs is not None:
                draft_probs.scatter_(-1, token, token_draft * ~is_drafted)
                # If all codes are sampled, 0 / 0 is nan, which is not > 0 either.
                draft_probs /= draft_probs.sum(-1, keepdim=True)

    def accept(
        self, probs: torch.Tensor, children: torch.Tensor, draft_probs: torch.Tensor | None, uniforms: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Accept the first child x with u p(x) <= s(x).

        Args:
            probs: target distribution, (batch, inner, vocab).
            children: as in `try_siblings`, (batch, inner, m).
            draft_probs: as in `try_siblings`, (batch, inner, vocab).
            uniforms: uniform random numbers u in (0, 1), shaped like `children`.

        Returns:
            (rank of the accepted child, or m if none is accepted, int64 (batch, inner); distribution of the emitted
            token if none is accepted, (batch, inner, vocab), without meaning at other nodes).
        """
        tried = list(self.try_siblings(probs, children, draft_probs))
        if not tried:
            return children.sum(-1), probs
        relaxed_prob = torch.cat([sibling.relaxed_prob for sibling in tried], dim=-1)
        token_draft = torch.cat([sibling.token_draft for sibling in tried], dim=-1)
        is_tried = torch.cat([sibling.is_tried for sibling in tried], dim=-1)
        is_accepted = is_tried & (uniforms * token_draft <= relaxed_prob) & (relaxed_prob > 0)
        rank = F.pad(is_accepted, (0, 1), value=True).byte().argmax(-1)
        return rank, tried[-1].residual


def accept_chain(
    probs: Sequence[torch.Tensor], tokens: Sequence[int], draft_probs: Sequence[torch.Tensor], uniforms: Sequence[float]
) -> tuple[int, torch.Tensor]:
    """Verify one chain in plain Python, as a test oracle.

    Args:
        probs: target distributions after the root and after each draft, (vocab,) each.
        tokens: the drafts x.
        draft_probs: distributions that the drafts were sampled from, (vocab,) each.
        uniforms: a uniform random number per draft.

    Returns:
        (number of accepted drafts, distribution of the token that follows them, (vocab,)).
    """
    for index, (x, t, p, u) in enumerate(zip(tokens, probs, draft_probs, uniforms, strict=False)):
        if u * p[x] > t[x] or t[x] == 0:
            residual = (t - p).clamp(min=0)
            return index, residual / residual.sum()
    return len(tokens), probs[len(tokens)]


class ByRejection(Verifier):
    """Verification by rejection sampling: children are tested one after the other, see `Rejection`."""

    noise_streams: ClassVar[tuple[str, ...]] = ("accept",)
    samples_target_tokens: ClassVar[bool] = False

    def __init__(self, rejection: Rejection) -> None:
        self.rejection = rejection

    def verify_all(self, scores: Scores, proposal: Proposal) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Verify the nodes that have children. At all other nodes the target samples a token."""
        tree = proposal.tree
        inner = tree.parent_nodes
        if inner is None:
            return super().verify_all(scores, proposal)
        weights = scores.weights.index_select(1, inner)
        positions = scores.positions.index_select(1, inner)
        choice = self._try(weights, positions, scores.noise, proposal.children, proposal.draft_probs)
        best, bonus = scores.keys.max(-1)
        bonus = bonus.index_copy(1, inner, choice.bonus)
        best = best.index_copy(1, inner, choice.best)
        chosen = of_all_nodes(choice.chosen, tree, NO_TOKEN).gather(1, tree.parents.expand(bonus.shape))
        return chosen == proposal.tokens, bonus, best

    def verify_nodes(self, scores: Scores, children: torch.Tensor, draft_probs: torch.Tensor | None) -> Choice:
        """Return the first accepted draft of each node, or a token that is sampled from the residual."""
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
        best, bonus = residual.log_().add_(noise.gumbel("target", positions)).max(-1)
        return Choice(token_of(rank, children, torch.full_like(bonus, NO_TOKEN)), bonus, best)
