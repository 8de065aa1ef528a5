"""Relaxed sets: the nearest codes of a draft that add to its relaxed probability.

The relaxed set A(x) of a draft x is always a prefix of its k nearest codes. s(x) is the target probability of {x} and
A(x) together. A *bound* limits the probability of A(x), here also called its mass. The pipeline measures the total
variation (TV) of the output distribution from the target's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F

from lantern.acceptance.base import Acceptance, Choice, Merged, Readings, Verifier, token_of
from lantern.draft_tree import DraftTree, first_leaf
from lantern.methods import OFFICIAL_RESIDUALS, MethodSpec
from lantern.parameters import ParameterValue
from lantern.sampling import SamplingConfig
from lantern.step import Proposal, Scores

MASSES_AT_ONCE = 2**22  # number of nearest codes whose masses are in memory at once, 32 MiB of integers


@dataclass
class MergedSet:
    """The relaxed sets A(x) of some drafts x, used as a `Merged`. Sums are computed when they are first read.

    Attributes:
        taken: int64, (..., k + 1): the codes of A(x), then x. x also replaces the codes that are not members.
        codes: int64, (..., k): the nearest codes of x.
        is_member: bool, (..., k): whether a code is in A(x). Always a prefix.
        cumulative: (..., k): target mass of each prefix.
        token_probs: (..., 1): target probability of x.
    """

    taken: torch.Tensor
    codes: torch.Tensor
    is_member: torch.Tensor
    cumulative: torch.Tensor
    token_probs: torch.Tensor
    _relaxed_prob: torch.Tensor | None = field(default=None, init=False)  # kept once computed, as in `Scores`

    @property
    def mass(self) -> torch.Tensor:
        """Target mass of A(x), (..., 1)."""
        if not self.codes.shape[-1]:
            return torch.zeros_like(self.token_probs)
        return (self.cumulative * self.is_member).amax(-1, keepdim=True)

    @property
    def relaxed_prob(self) -> torch.Tensor:
        """s(x), the target mass of {x} and A(x), (..., 1)."""
        if self._relaxed_prob is None:
            self._relaxed_prob = self.token_probs + self.mass
        return self._relaxed_prob


class RelaxedSets(Acceptance):
    """The base class of all bounds, which limit how many of a draft's nearest codes are in A(x).

    Args:
        table: nearest codes, integers of any dtype, (vocab, >= k). The authors' residuals read one column more.
        parameters: k and the parameters of the bound.

    Attributes:
        k: number of nearest codes considered.
        renormalises: whether the target distribution is rescaled to sum to 1 after a rejection, before the bound of the
            next sibling applies.
        leaves_filters: whether a draft that top-k or top-p removed may be accepted if its nearest codes have
            probability. True for the papers' acceptances.
    """

    k: int
    renormalises: ClassVar[bool] = True
    leaves_filters: ClassVar[bool] = True

    def __init__(self, table: torch.Tensor, **parameters: ParameterValue) -> None:
        super().__init__(**parameters)
        self.table = table

    @classmethod
    def make(cls, spec: MethodSpec, read: Readings) -> RelaxedSets:
        """Make the acceptance of a method. It keeps only those columns of the table that it needs.

        Raises:
            ValueError: the table is missing or too narrow.
        """
        # The authors' residuals read one more code.
        columns = spec["k"] + (not read.sampling.is_greedy and spec.residual in OFFICIAL_RESIDUALS)
        table = read.nearest_codes
        if table is None or table.shape[1] < columns:
            found = "no table" if table is None else f"a table of {table.shape[1]} columns"
            raise ValueError(f"method {spec.label} needs the {columns} nearest codes, got {found}")
        return cls(table[:, :columns].contiguous(), **spec.parameters)

    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor | float) -> torch.Tensor:
        """Return which prefixes of the nearest codes are within the bound, bool (..., k).

        After the first False all are False.

        Args:
            mass: target probability of each prefix, (..., k).
            token_probs: target probability of x, (..., 1).
            spent: probability that earlier siblings of this node have merged, (..., 1).
        """
        raise NotImplementedError

    def nearest(self, tokens: torch.Tensor, k: int | None = None) -> torch.Tensor:
        """Return the nearest codes of drafts, followed by the draft itself.

        Args:
            tokens: drafts, int64 (...). -1 marks a missing draft.
            k: number of nearest codes. None for the acceptance's k.

        Returns:
            int64 (..., k + 1). For a missing draft all are `vocab`, which is not a code.
        """
        width = self.k if k is None else k
        codes = self.table.index_select(0, tokens.clamp(min=0).flatten())[:, :width].long()
        codes = codes.reshape(*tokens.shape, codes.shape[1])
        codes = torch.cat([codes, tokens[..., None]], dim=-1)
        return torch.where(tokens[..., None] < 0, len(self.table), codes)

    def codes_of(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the k nearest codes of drafts, followed by the draft itself."""
        return self.nearest(tokens)

    def grow(self, codes: torch.Tensor, masses: torch.Tensor, spent: torch.Tensor | float = 0.0) -> MergedSet:
        """Return A(x), the longest prefix of the nearest codes of x within the bound.

        Args:
            codes: int64, (..., k + 1), from `nearest`.
            masses: target probability of the codes, shaped like `codes`. 0 for codes that were already removed at the
                node.
            spent: probability that earlier siblings have merged, (..., 1).
        """
        token = codes[..., -1:]
        token_probs = masses[..., -1:]
        cumulative = masses.cumsum(-1)
        is_member = self.admits(cumulative, token_probs, spent)
        taken = torch.where(is_member, codes, token)  # the last one is the draft, member or not
        return MergedSet(taken, codes[..., :-1], is_member[..., :-1], cumulative[..., :-1], token_probs)

    def merge(self, probs: torch.Tensor, draft_probs: torch.Tensor | None, codes: torch.Tensor) -> MergedSet:
        """Return A(x) of one draft per node, from the codes that `codes_of` returns."""
        return self.grow(codes, probs.gather(-1, codes))

    def move_mass(self, probs: torch.Tensor, merged: Merged) -> torch.Tensor:
        """Return the target distribution after the probability of A(x) has moved onto x."""
        moved = probs.scatter(-1, merged.taken, 0.0)
        return moved.scatter_(-1, merged.taken[..., -1:], merged.relaxed_prob)

    def has_one_residual(self) -> bool:
        """Return False: the residual depends on the codes of A(x)."""
        return False

    def relaxed_prob(self, probs: torch.Tensor, draft_probs: torch.Tensor | None, tokens: torch.Tensor) -> torch.Tensor:
        """Return s(x), the target probability of {x} and A(x)."""
        codes = self.nearest(tokens)
        masses = probs.gather(-1, codes.flatten(-2)).view_as(codes)
        return self.grow(codes, masses).relaxed_prob.squeeze(-1)

    def relaxed_prob_of_all(self, probs: torch.Tensor, draft_probs: torch.Tensor | None) -> torch.Tensor:
        """Return the relaxed probability s(x) of every code x, (..., vocab).

        It gathers k + 1 probabilities per code, so its cost is vocab * (k + 1) per node.
        """
        vocab = probs.shape[-1]
        rows = probs.reshape(-1, vocab)
        parts = []
        codes_at_once = max(1, MASSES_AT_ONCE // (len(rows) * (self.k + 1)))
        for tokens in torch.arange(vocab, device=probs.device).split(codes_at_once):
            codes = self.nearest(tokens)
            masses = rows.index_select(1, codes.flatten()).view(-1, *codes.shape)
            parts.append(self.grow(codes, masses).relaxed_prob.squeeze(-1))
        return torch.cat(parts, dim=-1).view_as(probs)

    def walk(
        self, probs: torch.Tensor, children: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, MergedSet, torch.Tensor]]:
        """Yield the relaxed sets of deterministic drafts, sibling after sibling.

        A code in the set of one sibling has no probability for later siblings.

        Args:
            probs: target distribution, (..., vocab).
            children: drafted tokens, int64 (..., m). -1 marks a missing draft.

        Yields:
            For each rank, three values. The token, int64 (...): -1 if it is missing or may not be accepted. Its A(x),
            which holds only the code `vocab` if there is no token. The target probability outside the sets so far,
            (..., vocab + 1), with 0 at the end, which the next iteration changes in place.
        """
        if not self.leaves_filters:
            is_removed = probs.gather(-1, children.clamp(min=0)) == 0
            children = children.masked_fill(is_removed, -1)
        codes = self.nearest(children)  # (..., m, k + 1)
        mass = F.pad(probs, (0, 1))
        tiny = torch.finfo(probs.dtype).tiny
        spent: torch.Tensor | float = 0.0
        for rank, token in enumerate(children.unbind(-1)):
            if rank > 0 and self.renormalises:
                mass /= mass.sum(-1, keepdim=True).clamp_(min=tiny)
            codes_of_token = codes[..., rank, :]
            merged = self.grow(codes_of_token, mass.gather(-1, codes_of_token), spent)
            mass.scatter_(-1, merged.taken, 0.0)
            yield token, merged, mass
            if not self.renormalises:
                spent = spent + merged.mass

    def make_verifier(self, spec: MethodSpec, sampling: SamplingConfig) -> Verifier:
        """Make the verifier, which is the authors' at temperature 0.

        Above temperature 0 it tests whether {x} and A(x) hold the target's sample.
        """
        if sampling.is_greedy:
            return GreedyWithinBound(self, spec.residual != "paper" and spec.tree == "dynamic")
        return WithinBound(self)


class AdditiveBound(RelaxedSets):
    """LANTERN's bound: A(x) is the longest prefix of the k nearest codes with mass <= delta.

    The output distribution differs from the target's. With one deterministic draft, TV <= delta. With m of them, TV <=
    1 - (1 - delta)^m. With sampled drafts there is no such bound.

    Attributes:
        delta: bound of the target probability of A(x).

    Source: LANTERN (arXiv 2410.03355), section 4.
    """

    delta: float

    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor | float) -> torch.Tensor:
        """Return mass <= delta, the same for every draft."""
        return mass <= self.delta


class JensenShannonBound(RelaxedSets):
    """LANTERN's bound with another distance: the Jensen-Shannon divergence of t~ and t, at most delta bits.

    t~ is t after the mass c of A(x) has moved onto x. The divergence therefore depends only on t(x) and c. It grows
    with c and is at most c, so that A(x) is at least as large as with the additive bound. The same bounds of the total
    variation hold.

    Attributes:
        delta: bound of the divergence, in bits.

    Source: LANTERN (arXiv 2410.03355), the paper's comparison of distances.
    """

    delta: float

    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor | float) -> torch.Tensor:
        """Return JSD(t~, t) <= delta.

        The codes of A(x), which have probability only under t, add c / 2. x itself adds the rest.
        """
        before = token_probs.expand_as(mass)
        after = token_probs + mass
        middle = (before + after) / 2
        at_token = (torch.xlogy(before, before) + torch.xlogy(after, after)) / 2 - torch.xlogy(middle, middle)  # nats
        return mass / 2 + at_token / math.log(2) <= self.delta


class MultiplicativeBound(RelaxedSets):
    """LANTERN++'s bound: A(x) is the longest prefix of the k nearest codes with mass <= (lambda - 1) t(x).

    No parameter bounds the distance of the output distribution from the target's: probable drafts merge more mass.

    Attributes:
        lambda_: bound of s(x) / t(x).

    Source: LANTERN++ (arXiv 2502.06352), section 3.
    """

    lambda_: float

    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor | float) -> torch.Tensor:
        """Return mass <= (lambda - 1) t(x)."""
        return mass <= (self.lambda_ - 1) * token_probs


class BudgetBound(RelaxedSets):
    """Lantern's bound: the children of a node share one budget delta of probability, in drafting order.

    With deterministic drafts ("top") at most delta of the probability moves, so that TV <= delta at every node. This
    does not hold at temperature 0: greedy decoding emits one token with certainty, so that any other token is a TV of
    1. There, every draft has a separate budget, see `GreedyWithinBound`.

    Attributes:
        delta: the budget.
    """

    delta: float
    renormalises = False
    leaves_filters = False

    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor | float) -> torch.Tensor:
        """Return mass <= the budget that earlier siblings have left."""
        return mass <= self.delta - spent


class Proximity(RelaxedSets):
    """Lantern's proximity acceptance: A(x) is all of the k nearest codes, whatever their mass.

    The TV from the target is at most the rate of substitutions, which is counted. A substitution is an emitted token
    that differs from the target's sample. Codes that the target's filters removed are never emitted.
    """

    renormalises = False
    leaves_filters = False

    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor | float) -> torch.Tensor:
        """Return True for any mass."""
        return torch.ones_like(mass, dtype=torch.bool)

    def make_verifier(self, spec: MethodSpec, sampling: SamplingConfig) -> Verifier:
        """Make the verifier that looks for the target's sample among the nearest codes of each draft."""
        return ByProximity(self)


class ByProximity(Verifier):
    """Proximity verification: a draft is also accepted if the target's sample y is one of its nearest codes.

    A draft equal to y is preferred to a draft near y. Drafts that the target's filters removed are not accepted.
    """

    def __init__(self, sets: RelaxedSets) -> None:
        self.sets = sets

    def verify_nodes(self, scores: Scores, children: torch.Tensor, draft_probs: torch.Tensor | None) -> Choice:
        """Accept the draft that equals the target's sample, else the first draft near it."""
        best, sampled = scores.keys.max(-1)
        is_kept = scores.weights.gather(-1, children.clamp(min=0)) > -torch.inf
        children = children.masked_fill(~is_kept, -1)
        sampled_token = sampled[..., None]
        nearest_codes = self.sets.table[children.clamp(min=0)]  # (batch, n, m, columns)
        is_near = (nearest_codes == sampled_token[..., None].to(nearest_codes.dtype)).any(-1) & (children >= 0)
        # The first of the largest scores wins: 2 or 3 for y itself, 1 for a draft near y, 1 for no draft.
        scores_of_drafts = 2 * (children == sampled_token) + is_near
        rank = torch.cat([scores_of_drafts, torch.ones_like(sampled_token)], dim=-1).argmax(-1)
        return Choice(token_of(rank, children, sampled), sampled, best)


class WithinBound(Verifier):
    """Relaxed verification of deterministic drafts: x is accepted if {x} or A(x) holds the target's sample y.

    The output distribution is the same as if the children were tried one by one: x is accepted with probability s(x),
    and a rejection removes {x} and A(x). The papers' bounds may accept drafts that the target's filters removed.
    Lantern's budget does not.
    """

    def __init__(self, sets: RelaxedSets) -> None:
        self.sets = sets

    def verify_nodes(self, scores: Scores, children: torch.Tensor, draft_probs: torch.Tensor | None) -> Choice:
        """Accept the first draft whose set holds the target's sample, else emit that sample."""
        best, sampled = scores.keys.max(-1)
        probs = scores.weights.softmax(-1)
        if self.has_twins:  # a second draft of the same token must not widen its set
            is_twin = (children[..., :, None] == children[..., None, :]).tril(-1).any(-1)
            children = children.masked_fill(is_twin, -1)
        masses = [mass.gather(-1, sampled[..., None]) for *_, mass in self.sets.walk(probs, children)]
        # y is in the first set after which it has no mass.
        rank = (torch.cat(masses, dim=-1) > 0).sum(-1) if masses else torch.zeros_like(sampled)
        return Choice(token_of(rank, children, sampled), sampled, best)


class GreedyWithinBound(Verifier):
    """Relaxed verification at temperature 0: x is accepted if s(x) makes it the most probable token.

    s(x) is computed from the softmax of the guided logits, without temperature and filters. Ties go to the lower code.
    s(x) is compared with the unchanged probabilities of all other codes, although the probability of A(x) moves onto x.
    This makes no difference: if A(x) holds the most probable token, s(x) exceeds its probability anyway.

    Args:
        sets: gives s(x).
        takes_first_leaf: decides between paths of the same length. If True, the path with the first leaf wins, else the
            path with the first node.

    Source: jadohu/LANTERN models/kv_variants/utils.py (evaluate_posterior, greedy branch).
    """

    def __init__(self, sets: RelaxedSets, takes_first_leaf: bool = False) -> None:
        self.sets = sets
        self.takes_first_leaf = takes_first_leaf

    def order_of_nodes(self, tree: DraftTree) -> torch.Tensor | None:
        """Return the first leaf below each node if `takes_first_leaf`, else None."""
        return first_leaf(tree) if self.takes_first_leaf else None

    def verify_all(self, scores: Scores, proposal: Proposal) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Compare s(x) of every draft with the most probable token of its parent.

        Several siblings may be accepted.
        """
        best, sampled = scores.logits.max(-1)
        tokens = proposal.tokens
        parents = proposal.tree.parents.expand(tokens.shape)
        probs = scores.logits.softmax(-1)
        top_probs, top = probs.max(-1)
        top_probs_of_parent = top_probs.gather(1, parents)
        top_of_parent = top.gather(1, parents)
        codes = self.sets.nearest(tokens.clamp(min=0))
        # The parent's probabilities of these codes, without a copy of the parent's row per node.
        index = parents[..., None] * probs.shape[-1] + codes
        masses = probs.flatten(1).gather(1, index.flatten(1)).view(codes.shape)
        relaxed_prob = self.sets.grow(codes, masses).relaxed_prob.squeeze(-1)
        is_tie = (relaxed_prob == top_probs_of_parent) & (tokens < top_of_parent)
        is_most_probable = (tokens == top_of_parent) | (relaxed_prob > top_probs_of_parent) | is_tie
        return is_most_probable & (tokens >= 0), sampled, best
