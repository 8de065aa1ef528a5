"""Verification by rejection sampling.

A draft x ~ p is accepted with probability f(x) = min(1, s(x) / p(x)), where s(x) is its relaxed probability. After a
rejection, the *residual* distribution replaces the target distribution t. The next sibling is tested against the
residual. If no sibling is accepted, the emitted token is sampled from the last residual. Without relaxation, s(x) =
t(x), and the emitted token has the target distribution:

    p(x) min(1, t(x) / p(x)) + P(rejected) max(0, t(x) - p(x)) / P(rejected) = t(x).

This holds only if a draft, its test and the token after a rejection are independent. They therefore read different
noise: a draft the stream "draft" or another one of its drafter, its test "accept", and the token "target".

Siblings are sampled from p without replacement, so that p is renormalised over the codes that no earlier sibling holds.
A deterministic draft counts as one of p(x) = 1.

Source: Leviathan et al. 2023 (arXiv 2211.17192); siblings: Miao et al. 2024 (arXiv 2305.09781); the residual "matched":
COOL-SD (arXiv 2601.09212).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from typing_extensions import override

from lantern.acceptance.base import Acceptance, Choice, Exact, Merged, Verifier, token_of
from lantern.draft_tree import of_all_nodes
from lantern.noise import TARGET, NoiseField, Stream, Uniform
from lantern.step import Proposal, Scores
from lantern.tree_shapes import MAX_SIBLINGS

ACCEPT = Uniform("accept", MAX_SIBLINGS)  # a number for each child of a node
NO_TOKEN = -2  # `Choice.chosen` if no child is accepted; -1 would match missing children


class Tried(NamedTuple):
    """The probabilities that decide whether one child x of each node is accepted, such as every node's second child."""

    relaxed_prob: torch.Tensor  # s(x), (..., 1)
    token_draft: torch.Tensor  # p(x), (..., 1)
    is_tried: torch.Tensor  # whether the node has this child and p(x) > 0, (..., 1)
    residual: torch.Tensor  # target distribution after x is rejected, (..., vocab)


@dataclass(frozen=True)
class Rejection:
    """Rejection sampling with one acceptance and one kind of residual.

    Attributes:
        residual: key of RESIDUALS. "paper" is normalise(max(0, t~ - p)), where t~ is t after the probabilities of
            similar codes have moved onto x. "matched" is normalise(max(0, t - p f)). No other residual leads to a lower
            total variation from t with the same f. It is the same for every rejected x.
    """

    acceptance: Acceptance = field(default_factory=Exact)
    residual: str = "paper"

    @property
    def has_one_residual(self) -> bool:
        """True if the residual does not depend on which sampled draft was rejected."""
        return self.residual == "matched" or self.acceptance.has_one_residual

    def at(self, depths: torch.Tensor) -> Rejection:
        """Return the test with `Acceptance.at` the depths of nodes, int64 (nodes,)."""
        return replace(self, acceptance=self.acceptance.at(depths))

    def residual_probs(
        self,
        probs: torch.Tensor,
        merged: Merged | None,
        draft_probs: torch.Tensor | None,
        is_tried: torch.Tensor | bool = True,
        acceptance: Acceptance | None = None,
    ) -> torch.Tensor:
        """Return the residual after one rejected draft x per node, or `probs` where no draft was tried, (..., vocab).

        `merged`, of the drafts x, may be None if drafts are sampled and `has_one_residual` is True. `is_tried` is a
        tensor (..., 1), or True if all nodes had a draft to try. `acceptance` is the one that tested the drafts, None
        for `self.acceptance`.
        """
        residual = (acceptance or self.acceptance).residual(self.residual, probs, merged, draft_probs)
        total = residual.sum(-1, keepdim=True)
        # The total is 0 where t~ = p, or t = p f if "matched": there only rounding rejects. Then `probs` is returned,
        # in which the filtered-out codes still have probability 0.
        return torch.where((total > 0) & is_tried, residual.div_(total), probs)

    def try_siblings(
        self, probs: torch.Tensor, children: torch.Tensor, draft_probs: torch.Tensor | None
    ) -> Iterator[Tried]:
        """Yield the test of each of the m children of a node in order, given that all earlier children were rejected.

        All nodes are tested in parallel: the first result is about the first child of every node. In `children`, (...,
        m), -1 marks a missing child.
        """
        acceptance = self.acceptance
        if draft_probs is not None:
            draft_probs = draft_probs.clone()  # changed in place below
        for rank, codes in enumerate(acceptance.codes_of(children.clamp(min=0)).unbind(-2)):
            token = codes[..., -1:]  # `codes_of` ends with x itself
            is_drafted = children[..., rank : rank + 1] >= 0
            merged = acceptance.merge(probs, draft_probs, codes)
            if draft_probs is None:
                token_draft = torch.ones_like(merged.relaxed_prob)
                is_tried = is_drafted
            else:
                token_draft = draft_probs.gather(-1, token)
                # A draft of probability 0 is not tried. It occurs for a code far below the best: softmax underflows.
                is_tried = is_drafted & (token_draft > 0)
            probs = self.residual_probs(probs, merged, draft_probs, is_tried, acceptance)
            acceptance = acceptance.of_next_sibling()
            yield Tried(merged.relaxed_prob, token_draft, is_tried, probs)
            if draft_probs is not None:
                # p without x. A node that has no such child keeps p: the token is a stand-in.
                draft_probs.scatter_(-1, token, token_draft * ~is_drafted)
                # If all codes are sampled, 0 / 0 is nan, and `token_draft > 0` above is False.
                draft_probs /= draft_probs.sum(-1, keepdim=True)

    def accept(
        self, probs: torch.Tensor, children: torch.Tensor, draft_probs: torch.Tensor | None, uniforms: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Accept the first child x with u p(x) <= s(x), where u is a uniform random number.

        `uniforms` holds u for each child, in (0, 1], (..., m). Return the index of the accepted child of each node, or
        m, (...), and the distribution of the token that is emitted if none is accepted, (..., vocab). At nodes with an
        accepted child it has no meaning.
        """
        tried = list(self.try_siblings(probs, children, draft_probs))
        if not tried:
            return children.sum(-1), probs  # m = 0: an empty sum is rank 0
        relaxed_prob = torch.cat([sibling.relaxed_prob for sibling in tried], dim=-1)
        token_draft = torch.cat([sibling.token_draft for sibling in tried], dim=-1)
        is_tried = torch.cat([sibling.is_tried for sibling in tried], dim=-1)
        # u p <= s is u <= s / p, but divides by no p = 0. s = 0 is excluded, since u p can underflow to 0.
        is_accepted = is_tried & (uniforms * token_draft <= relaxed_prob) & (relaxed_prob > 0)
        # The first True, which is the extra column m if no child is accepted. argmax takes no bools.
        rank = F.pad(is_accepted, (0, 1), value=True).byte().argmax(-1)
        return rank, tried[-1].residual


class ByRejection(Verifier):
    """Verification by rejection sampling: a draft x is accepted with probability min(1, s(x) / p(x)).

    After a rejection, the next child is tested against the residual. This is how sampled drafts are verified above
    temperature 0, and with the LANTERN authors' residuals deterministic ones, too.
    """

    noise_streams: tuple[Stream, ...] = (ACCEPT,)
    samples_target_tokens: ClassVar[bool] = False

    def __init__(self, rejection: Rejection) -> None:
        self.rejection = rejection

    @override
    def verify_all(self, scores: Scores, proposal: Proposal) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        tree = proposal.tree
        # Softmax and tests, the costly part, run on the inner nodes only. A leaf emits the target's sample.
        inner = tree.parent_nodes
        if inner is None:
            return super().verify_all(scores, proposal)
        weights = scores.weights.index_select(1, inner)
        positions = scores.positions.index_select(1, inner)
        chosen, bonus_of_inner = self._try(weights, positions, scores.noise, proposal.children, proposal.draft_probs)
        best, bonus = scores.keys.max(-1)
        bonus = bonus.index_copy(1, inner, bonus_of_inner)
        # A node is accepted if it holds the token chosen at its parent.
        chosen = of_all_nodes(chosen, tree, NO_TOKEN).gather(1, tree.parents.expand(bonus.shape))
        return chosen == proposal.tokens, bonus, best

    @override
    def verify_nodes(self, scores: Scores, children: torch.Tensor, draft_probs: torch.Tensor | None) -> Choice:
        chosen, bonus = self._try(scores.weights, scores.positions, scores.noise, children, draft_probs)
        return Choice(chosen, bonus, scores.weights.amax(-1))

    def _try(
        self,
        weights: torch.Tensor,
        positions: torch.Tensor,
        noise: NoiseField,
        children: torch.Tensor,
        draft_probs: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # `Choice.chosen` and `Choice.bonus`
        uniforms = noise.uniform(ACCEPT, positions, children.shape[-1])
        rank, residual = self.rejection.accept(weights.softmax(-1), children, draft_probs, uniforms)
        # In place: nothing else reads `residual`.
        _, bonus = residual.log_().add_(noise.gumbel(TARGET, positions)).max(-1)
        return token_of(rank, children, torch.full_like(bonus, NO_TOKEN)), bonus
