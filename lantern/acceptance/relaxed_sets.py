"""Relaxed sets: which of a draft's nearest codes may stand in for it, A(x), and how a token of the target's is compared
with them.

A bound limits the target mass of A(x), which is always a prefix of the k nearest codes of x; s(x) is the mass of {x}
and A(x). How far each departs from the target's distribution is measured by the pipeline's total variation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from lantern.acceptance.base import Acceptance, Choice, Readings, Verifier, token_of
from lantern.draft_tree import DraftTree, first_leaf
from lantern.methods import OFFICIAL_RESIDUALS, MethodSpec
from lantern.sampling import SamplingConfig
from lantern.step import Proposal, Scores

MASSES_AT_ONCE = 2**22  # nearest codes' masses of all codes held at once; 32 MiB of their numbers


@dataclass
class MergedSet:
    """A(x) of some drafts x; a `Merged` that works out what is asked for.

    Attributes:
        taken: int64, (..., k + 1): A(x) and x, x repeated and at the end.
        codes: int64, (..., k): the nearest codes of x.
        is_member: bool, (..., k): which of them are in A(x); always a prefix.
        cumulative: (..., k): target mass of each prefix.
        token_probs: (..., 1): target mass of x.
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
    """How many of a draft's nearest codes may stand in for it: the base of all bounds.

    Args:
        table: (vocab, >= k): nearest codes, whole numbers of any width; one column more than k for the authors'
            residuals.
        parameters: k, nearest codes considered, and those of the bound.

    Attributes:
        renormalises: whether the target's mass is rescaled to 1 after a rejection, before the next sibling's bound
            applies.
        leaves_filters: whether a draft that top-k or top-p removed may be accepted if its nearest codes have
            probability. True for the papers' acceptances.
    """

    moves_mass: ClassVar[bool] = True
    renormalises: ClassVar[bool] = True
    leaves_filters: ClassVar[bool] = True

    def __init__(self, table: torch.Tensor, **parameters: Any) -> None:
        super().__init__(**parameters)
        self.table = table

    @classmethod
    def make(cls, spec: MethodSpec, read: Readings) -> RelaxedSets:
        """Takes the columns of the table that the method reads.

        Raises:
            ValueError: the table is missing or too narrow.
        """
        # The authors' residuals reach one code further.
        columns = spec.k + (not read.sampling.is_greedy and spec.residual in OFFICIAL_RESIDUALS)
        table = read.nearest_codes
        if table is None or table.shape[1] < columns:
            found = "no table" if table is None else f"a table of {table.shape[1]} columns"
            raise ValueError(f"method {spec.method_id or spec.name} needs the {columns} nearest codes, got {found}")
        return cls(table[:, :columns].contiguous(), **spec.parameters)

    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor | float) -> torch.Tensor:
        """Whether A(x) may have this mass (..., k), for drafts of target probability token_probs (..., 1), after
        `spent` (..., 1) at this node; once False along k, False ever after.
        """
        raise NotImplementedError

    def nearest(self, tokens: torch.Tensor, k: int | None = None) -> torch.Tensor:
        """The k nearest codes of drafts, then the draft: int64 (...), -1 for none -> (..., k + 1); `vocab`, the number
        of no code, where there is no draft.
        """
        k = self.k if k is None else k
        codes = self.table.index_select(0, tokens.clamp(min=0).flatten())[:, :k].long()
        codes = torch.cat([codes.reshape(*tokens.shape, codes.shape[1]), tokens[..., None]], dim=-1)
        return torch.where(tokens[..., None] < 0, len(self.table), codes)

    codes_of = nearest

    def grow(self, codes: torch.Tensor, masses: torch.Tensor, spent: torch.Tensor | float = 0.0) -> MergedSet:
        """Grows A(x): the longest prefix of the nearest codes of x whose target mass stays within the bound.

        Args:
            codes: int64, (..., k + 1), of `nearest`.
            masses: their target mass, of the same shape; codes already removed at the node have 0.
            spent: mass that earlier siblings have merged, (..., 1).
        """
        cumulative, token, token_probs = masses.cumsum(-1), codes[..., -1:], masses[..., -1:]
        is_member = self.admits(cumulative, token_probs, spent)
        taken = torch.where(is_member, codes, token)  # the last is the draft, member or not
        return MergedSet(taken, codes[..., :-1], is_member[..., :-1], cumulative[..., :-1], token_probs)

    def merge(self, probs: torch.Tensor, draft_probs: torch.Tensor | None, codes: torch.Tensor) -> MergedSet:
        """A(x) of one draft per node."""
        return self.grow(codes, probs.gather(-1, codes))

    def relaxed_prob(self, probs: torch.Tensor, draft_probs: torch.Tensor | None, tokens: torch.Tensor) -> torch.Tensor:
        """s(x), the target mass of {x} and A(x)."""
        codes = self.nearest(tokens)
        masses = probs.gather(-1, codes.flatten(-2)).view_as(codes)
        return self.grow(codes, masses).relaxed_prob.squeeze(-1)

    def relaxed_prob_of_all(self, probs: torch.Tensor, draft_probs: torch.Tensor | None) -> torch.Tensor:
        """s(x) of every code; reads vocab (k + 1) masses a node."""
        rows, parts = probs.reshape(-1, probs.shape[-1]), []
        codes_at_once = max(1, MASSES_AT_ONCE // (len(rows) * (self.k + 1)))
        for tokens in torch.arange(probs.shape[-1], device=probs.device).split(codes_at_once):
            codes = self.nearest(tokens)
            masses = rows.index_select(1, codes.flatten()).view(-1, *codes.shape)
            parts.append(self.grow(codes, masses).relaxed_prob.squeeze(-1))
        return torch.cat(parts, dim=-1).view_as(probs)

    def walk(
        self, probs: torch.Tensor, children: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, MergedSet, torch.Tensor]]:
        """Grows the sets of deterministic drafts, sibling after sibling; a code taken by one has no mass for the next.

        Args:
            probs: target distribution, (..., vocab).
            children: int64, (..., m): drafted tokens, -1 where there is none.

        Yields:
            For each rank: token, int64 (...), -1 where there is none that may be accepted; its A(x), of the code
            `vocab` alone where there is none; the target mass that it and those before have left, (..., vocab + 1), 0
            at the end, which the next one changes.
        """
        if not self.leaves_filters:
            children = children.masked_fill(probs.gather(-1, children.clamp(min=0)) == 0, -1)
        codes = self.nearest(children)  # (..., m, k + 1)
        left, spent = F.pad(probs, (0, 1)), 0.0
        for rank, token in enumerate(children.unbind(-1)):
            if rank > 0 and self.renormalises:
                left /= left.sum(-1, keepdim=True).clamp_(min=torch.finfo(probs.dtype).tiny)
            own = codes[..., rank, :]
            merged = self.grow(own, left.gather(-1, own), spent)
            left.scatter_(-1, merged.taken, 0.0)
            yield token, merged, left
            if not self.renormalises:
                spent = spent + merged.mass

    def make_verifier(self, spec: MethodSpec, sampling: SamplingConfig) -> Verifier:
        """Make the authors' verifier at temperature 0, above it the one that looks for the target's token in A(x)."""
        if sampling.is_greedy:
            return GreedyWithinBound(self, spec.residual != "paper" and spec.tree == "dynamic")
        return WithinBound(self)


class AdditiveBound(RelaxedSets):
    """LANTERN: A(x) is the longest prefix of the k nearest codes with mass <= delta.

    The output distribution departs from the target's: with one deterministic draft TV <= delta, with several
    1 - (1 - delta)^m, and with sampled drafts there is no such bound.

    Source: LANTERN (arXiv 2410.03355), section 4.
    """

    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor | float) -> torch.Tensor:
        """Mass <= delta, the same for every draft."""
        return mass <= self.delta


class JensenShannonBound(RelaxedSets):
    """LANTERN with another distance: A(x) is the longest prefix of the k nearest codes for which the Jensen-Shannon
    divergence of t~ and t, in bits, is <= delta.

    t~ is t with A(x)'s mass c moved onto x, so that the divergence depends on t(x) and c alone; it grows with c and is
    at most c, hence a set at least as large as the additive bound's. What holds of TV there holds here.

    Source: LANTERN (arXiv 2410.03355), the paper's comparison of distances.
    """

    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor | float) -> torch.Tensor:
        """JSD(t~, t) <= delta: c / 2 from the codes of A(x), which only t holds, and the rest from x itself."""
        before, after = token_probs.expand_as(mass), token_probs + mass
        middle = (before + after) / 2
        at_token = (torch.xlogy(before, before) + torch.xlogy(after, after)) / 2 - torch.xlogy(middle, middle)  # nats
        return mass / 2 + at_token / math.log(2) <= self.delta


class MultiplicativeBound(RelaxedSets):
    """LANTERN++: A(x) is the longest prefix of the k nearest codes with mass <= (lambda - 1) t(x).

    The output distribution departs from the target's without a bound of its own: likely drafts draw in more mass.

    Source: LANTERN++ (arXiv 2502.06352), section 3.
    """

    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor | float) -> torch.Tensor:
        """Mass <= (lambda - 1) t(x)."""
        return mass <= (self.lambda_ - 1) * token_probs


class BudgetBound(RelaxedSets):
    """Ours: the children of a node share one budget delta of target mass, in drafting order.

    With deterministic (top) drafts at most delta of the mass moves, so TV <= delta at every node. That holds at
    temperatures above 0 only: greedy decoding emits one token with certainty, so that any other is a TV of 1; there
    every draft has a budget of its own, see `GreedyWithinBound`.
    """

    renormalises = False
    leaves_filters = False

    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor | float) -> torch.Tensor:
        """Mass <= what earlier siblings have left of the budget."""
        return mass <= self.delta - spent


class Proximity(RelaxedSets):
    """Ours: A(x) is all of the k nearest codes, whatever their mass: "the draft is a look-alike of what the target
    drew".

    TV from the target is at most the rate of substitutions (emitted token other than the target's), which is counted.
    Codes that the target's filters took away are never emitted.
    """

    renormalises = False
    leaves_filters = False

    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor | float) -> torch.Tensor:
        """Any mass."""
        return torch.ones_like(mass, dtype=torch.bool)

    def make_verifier(self, spec: MethodSpec, sampling: SamplingConfig) -> Verifier:
        """Make the verifier that compares nearest codes with the target's token, whatever their probabilities."""
        return ByLookAlike(self)


class ByLookAlike(Verifier):
    """Proximity verification: a draft is also accepted if the token y that the target draws is one of its nearest
    codes; one equal to y is preferred to its look-alikes. What the target's filters took away is not accepted.
    """

    def __init__(self, sets: RelaxedSets) -> None:
        self.sets = sets

    def verify_nodes(self, scores: Scores, children: torch.Tensor, draft_probs: torch.Tensor | None) -> Choice:
        """The target's token or its first look-alike."""
        best, own = scores.keys.max(-1)
        is_kept = scores.weights.gather(-1, children.clamp(min=0)) > -torch.inf
        children = children.masked_fill(~is_kept, -1)
        drawn, table = own[..., None], self.sets.table
        is_near = (table[children.clamp(min=0)] == drawn[..., None].to(table.dtype)).any(-1) & (children >= 0)
        fits = torch.cat([2 * (children == drawn) + is_near, torch.ones_like(drawn)], dim=-1)
        return Choice(token_of(fits.argmax(-1), children, own), own, best)


class WithinBound(Verifier):
    """Relaxed decoding of deterministic drafts: a draft is accepted if the token y that the target draws is in its
    relaxed set.

    The output distribution is that of trying the children one by one with acceptance s(x), removing {x} and A(x) on
    rejection. The papers' bounds may accept what the target's filters took away, our budget does not.
    """

    def __init__(self, sets: RelaxedSets) -> None:
        self.sets = sets

    def verify_nodes(self, scores: Scores, children: torch.Tensor, draft_probs: torch.Tensor | None) -> Choice:
        """The first draft whose set holds the target's token, or that token."""
        best, own = scores.keys.max(-1)
        probs = scores.weights.softmax(-1)
        if not self.follows_path:  # the twin of a draft of another kind must not widen its set
            is_twin = (children[..., :, None] == children[..., None, :]).tril(-1).any(-1)
            children = children.masked_fill(is_twin, -1)
        left = [mass.gather(-1, own[..., None]) for *_, mass in self.sets.walk(probs, children)]
        # The first that leaves y no mass holds it.
        rank = (torch.cat(left, dim=-1) > 0).sum(-1) if left else torch.zeros_like(own)
        return Choice(token_of(rank, children, own), own, best)


class GreedyWithinBound(Verifier):
    """Relaxed decoding at temperature 0, as the authors' code does it: x is accepted if s(x) makes it the most probable
    token.

    s(x) is taken from the softmax of the raw guided logits (temperature and filters ignored); ties go to the lower
    code. Whether A(x) keeps its mass makes no difference: if it holds the top token, s(x) exceeds it anyway.

    Args:
        sets: gives s(x).
        takes_first_leaf: whether the first leaf decides between paths of one length, not the first node.

    Source: jadohu/LANTERN models/kv_variants/utils.py (evaluate_posterior, greedy branch).
    """

    def __init__(self, sets: RelaxedSets, takes_first_leaf: bool = False) -> None:
        self.sets, self.takes_first_leaf = sets, takes_first_leaf

    def order_of_nodes(self, tree: DraftTree) -> torch.Tensor | None:
        """Return the first leaf below each node, if the authors' code orders paths so."""
        return first_leaf(tree) if self.takes_first_leaf else None

    def verify_all(self, scores: Scores, proposal: Proposal) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Several children of one node may be accepted, whatever their tokens."""
        best, own = scores.logits.max(-1)
        tokens, index = proposal.tokens, proposal.tree.parents.expand(proposal.tokens.shape)
        probs = scores.logits.softmax(-1)
        top_probs, top = probs.max(-1)
        top_probs, top = top_probs.gather(1, index), top.gather(1, index)  # of each node's parent
        codes = self.sets.nearest(tokens.clamp(min=0))
        # Of each node's parent at these codes, without a copy of the parent's row per node.
        masses = probs.flatten(1).gather(1, (index[..., None] * probs.shape[-1] + codes).flatten(1)).view(codes.shape)
        relaxed_prob = self.sets.grow(codes, masses).relaxed_prob.squeeze(-1)
        fits = (tokens == top) | (relaxed_prob > top_probs) | ((relaxed_prob == top_probs) & (tokens < top))
        return fits & (tokens >= 0), own, best
