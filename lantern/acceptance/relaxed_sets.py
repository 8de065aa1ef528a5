"""Relaxed sets: the nearest codes of a draft whose target probabilities are added to the draft's.

The relaxed set A(x) of a draft x consists of the first n of its k nearest codes. It does not contain x. The relaxed
probability s(x) is the total target probability of x and of the codes in A(x). A *bound* determines n. It is an upper
limit of the total target probability of A(x), which is called the mass of A(x). For example, if the nearest codes have
the probabilities 0.06, 0.03 and 0.05, a bound of 0.1 gives n = 2.

The docstrings of some bounds also state an upper limit of the total variation (TV) between the distribution of the
emitted token and the target's.
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
from lantern.method_tables import OFFICIAL_RESIDUALS
from lantern.methods import MethodSpec
from lantern.parameters import ParameterValue
from lantern.sampling import SamplingConfig
from lantern.step import Proposal, Scores
from lantern.tree_shapes import DynamicTreeOptions

MASSES_AT_ONCE = 2**22  # number of nearest codes that are in memory at the same time, 32 MiB of integers


@dataclass
class MergedSet:
    """The relaxed sets A(x) of some drafts x, with all attributes of `Merged`.

    A(x) consists of the first n of the k nearest codes of x. Their target probabilities are added to that of x. Sums
    of probabilities are computed when they are first read.

    Attributes:
        taken: the codes of A(x), then x, int64 (..., k + 1). Nearest codes that are not in A(x) are replaced by x.
        codes: the k nearest codes of x, nearest first, int64 (..., k).
        is_member: whether each of `codes` is in A(x), bool (..., k). After the first False all are False.
        cumulative: total target probability of the nearest codes up to and including each one, (..., k).
        token_probs: target probability t(x), (..., 1).
    """

    taken: torch.Tensor
    codes: torch.Tensor
    is_member: torch.Tensor
    cumulative: torch.Tensor
    token_probs: torch.Tensor
    _relaxed_prob: torch.Tensor | None = field(default=None, init=False)  # kept once computed, as in `Scores`

    @property
    def mass(self) -> torch.Tensor:
        """Total target probability of the relaxed set A(x), without the draft x itself, (..., 1)."""
        if not self.codes.shape[-1]:
            return torch.zeros_like(self.token_probs)
        return (self.cumulative * self.is_member).amax(-1, keepdim=True)

    @property
    def relaxed_prob(self) -> torch.Tensor:
        """Relaxed probability s(x): total target probability of a draft x and of its relaxed set A(x), (..., 1)."""
        if self._relaxed_prob is None:
            self._relaxed_prob = self.token_probs + self.mass
        return self._relaxed_prob


class RelaxedSets(Acceptance):
    """The base class of acceptances that add the target probabilities of a draft's nearest codes to the draft's.

    The added codes form the relaxed set A(x) of the draft x. A subclass defines `admits`, a bound that limits how many
    codes are added.

    Args:
        table: the nearest codes of each code, nearest first, integers of any dtype, (vocab, k or more). The residuals
            of the LANTERN authors' code need k + 1 columns.
        parameters: k and the parameters of the bound.

    Attributes:
        k: number of nearest codes that may be in A(x).
        renormalises: whether the target distribution is rescaled to sum to 1 after a rejection, before the bound is
            applied to the next sibling.
        leaves_filters: whether a draft that top-k or top-p filtering removed may be accepted if its nearest codes have
            probability. True for the acceptances of the LANTERN papers.
    """

    k: int
    renormalises: ClassVar[bool] = True
    leaves_filters: ClassVar[bool] = True

    def __init__(self, table: torch.Tensor, **parameters: ParameterValue) -> None:
        super().__init__(**parameters)
        self.table = table

    @classmethod
    def make(cls, spec: MethodSpec, read: Readings) -> RelaxedSets:
        """Make the acceptance of a method, with only those columns of the table of nearest codes that it needs.

        Args:
            spec: the method, with k and the parameters of the bound.
            read: sampling settings, and the table of nearest codes.

        Raises:
            ValueError: the table is missing or has too few columns.
        """
        # The residuals of the LANTERN authors' code read one more code.
        columns = spec["k"] + (not read.sampling.is_greedy and spec.residual in OFFICIAL_RESIDUALS)
        table = read.nearest_codes
        if table is None or table.shape[1] < columns:
            found = "no table" if table is None else f"a table of {table.shape[1]} columns"
            raise ValueError(f"method {spec.label} needs the {columns} nearest codes, got {found}")
        return cls(table[:, :columns].contiguous(), **spec.parameters)

    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor | float) -> torch.Tensor:
        """Return which sets of nearest codes are within the bound, so that they may be the relaxed set of a draft x.

        The target probabilities of the codes in the relaxed set are added to that of x. The bound, which a subclass
        defines, limits how many codes these are. For example, [True, True, False] means that the two nearest codes
        are within the bound, but not the three nearest ones. After the first False all entries must be False. There may
        be one more set at the end, the k nearest codes with x itself. Its entry is ignored.

        Args:
            mass: total target probability of each set, (..., sets). Set i holds the i + 1 nearest codes.
            token_probs: target probability t(x), (..., 1).
            spent: total target probability of the relaxed sets of earlier siblings of x, (..., 1).

        Returns:
            bool (..., sets).
        """
        raise NotImplementedError

    def nearest(self, tokens: torch.Tensor, k: int | None = None) -> torch.Tensor:
        """Return the nearest codes of drafts, followed by the draft itself.

        Args:
            tokens: drafts, int64 (...). -1 marks a missing draft.
            k: number of nearest codes. None for the attribute `k`.

        Returns:
            int64 (..., k + 1), nearest first. For a missing draft all entries are `vocab`, which is no code.
        """
        width = self.k if k is None else k
        codes = self.table.index_select(0, tokens.clamp(min=0).flatten())[:, :width].long()
        codes = codes.reshape(*tokens.shape, codes.shape[1])
        codes = torch.cat([codes, tokens[..., None]], dim=-1)
        return torch.where(tokens[..., None] < 0, len(self.table), codes)

    def codes_of(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the k nearest codes of drafts, followed by the draft itself, see `Acceptance.codes_of`."""
        return self.nearest(tokens)

    def grow(self, codes: torch.Tensor, masses: torch.Tensor, spent: torch.Tensor | float = 0.0) -> MergedSet:
        """Return the relaxed set A(x) of each draft x: as many of its nearest codes as the bound allows.

        Args:
            codes: the k nearest codes of x, then x, int64 (..., k + 1), from `nearest`.
            masses: target probabilities of `codes`, (..., k + 1). 0 for codes in the relaxed set of an earlier sibling.
            spent: total target probability of the relaxed sets of earlier siblings, (..., 1).
        """
        token = codes[..., -1:]
        token_probs = masses[..., -1:]
        cumulative = masses.cumsum(-1)
        is_member = self.admits(cumulative, token_probs, spent)
        taken = torch.where(is_member, codes, token)  # the last one is x in either case
        return MergedSet(taken, codes[..., :-1], is_member[..., :-1], cumulative[..., :-1], token_probs)

    def merge(self, probs: torch.Tensor, draft_probs: torch.Tensor | None, codes: torch.Tensor) -> MergedSet:
        """Return the relaxed set A(x) of one draft x per node: the nearest codes whose probability is added to t(x).

        For the arguments see `Acceptance.merge`.
        """
        return self.grow(codes, probs.gather(-1, codes))

    def move_mass(self, probs: torch.Tensor, merged: Merged) -> torch.Tensor:
        """Move the target probabilities of the codes in the relaxed set A(x) onto the draft x.

        For arguments and result see `Acceptance.move_mass`.
        """
        moved = probs.scatter(-1, merged.taken, 0.0)
        return moved.scatter_(-1, merged.taken[..., -1:], merged.relaxed_prob)

    def has_one_residual(self) -> bool:
        """Return False: the residual distribution after a rejection depends on the relaxed set of the rejected code."""
        return False

    def relaxed_prob(self, probs: torch.Tensor, draft_probs: torch.Tensor | None, tokens: torch.Tensor) -> torch.Tensor:
        """Return s(x), the total target probability of a draft x and of its relaxed set A(x).

        For the arguments see `Acceptance.relaxed_prob`.
        """
        codes = self.nearest(tokens)
        masses = probs.gather(-1, codes.flatten(-2)).view_as(codes)
        return self.grow(codes, masses).relaxed_prob.squeeze(-1)

    def relaxed_prob_of_all(self, probs: torch.Tensor, draft_probs: torch.Tensor | None) -> torch.Tensor:
        """Return the relaxed probability s(x) of every code x, (..., vocab).

        For the arguments see `Acceptance.relaxed_prob_of_all`. The function reads vocab * (k + 1) probabilities per
        node, which takes much time for a large vocabulary.
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
        """Yield the relaxed sets of the m deterministic drafts of each node, one sibling after the other.

        The relaxed set of a draft holds the nearest codes whose probability is added to the draft's. A code that is in
        the set of one sibling has probability 0 for later siblings.

        Args:
            probs: target distribution, (..., vocab).
            children: tokens of the siblings, int64 (..., m). -1 marks a missing draft.

        Yields:
            For each sibling, three values:

            - its token, int64 (...), or -1 if there is none or it may not be accepted,
            - its relaxed set, in which all codes are `vocab` (no code) if there is no token,
            - the target probabilities that remain, (..., vocab + 1): 0 for this sibling, earlier siblings and the codes
              in their sets. The last entry is 0 and belongs to `vocab`. The next iteration changes this tensor in
              place.
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
        """Make the verifier for drafts that are not verified by rejection sampling.

        At temperature 0 it is the verifier of the LANTERN authors' code. Above temperature 0 it accepts a draft if the
        target samples the draft or a code of its relaxed set.

        Args:
            spec: the method. Its residual and tree decide which of several longest paths wins at temperature 0.
            sampling: temperature and filters.
        """
        if sampling.is_greedy:
            return GreedyWithinBound(self, spec.residual != "paper" and isinstance(spec.tree_shape, DynamicTreeOptions))
        return WithinBound(self)


class AdditiveBound(RelaxedSets):
    """LANTERN's bound: the relaxed set A(x) of a draft x grows while its total target probability is at most delta.

    A(x) holds the nearest codes whose probability is added to that of x. The output distribution differs from the
    target's. With one deterministic draft per node, the total variation (TV) is at most delta. With m deterministic
    drafts it is at most 1 - (1 - delta)^m. With sampled drafts, delta does not bound the TV.

    Attributes:
        delta: upper bound of the total target probability of A(x).

    Source: LANTERN (arXiv 2410.03355), section 4.
    """

    delta: float

    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor | float) -> torch.Tensor:
        """Return for each set of nearest codes whether its total probability is <= delta, see `RelaxedSets.admits`."""
        return mass <= self.delta


class JensenShannonBound(RelaxedSets):
    """A variant of LANTERN's bound: the relaxed set of a draft grows up to a Jensen-Shannon divergence of delta bits.

    The relaxed set A(x) of a draft x holds the nearest codes whose probability is added to that of x. Let c be the
    total target probability of A(x). Let t~ be the target distribution t after c has moved from A(x) onto x. The bound
    limits the divergence between t and t~.

    The divergence depends only on t(x) and c. It grows with c, and is between c / 2 and c. A(x) is therefore at least
    as large as with `AdditiveBound` and the same delta, and c is at most 2 delta.

    The output distribution differs from the target's. With one deterministic draft per node, the total variation (TV)
    is c, and thus at most 2 delta. With m deterministic drafts it is at most 1 - (1 - 2 delta)^m, if delta <= 1/2. With
    sampled drafts, delta does not bound the TV.

    Attributes:
        delta: upper bound of the divergence, in bits.

    Source: LANTERN (arXiv 2410.03355), the paper's comparison of distances.
    """

    delta: float

    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor | float) -> torch.Tensor:
        """Return for each set of nearest codes whether the Jensen-Shannon divergence is <= delta.

        The divergence is taken between the target distribution before and after the set's total probability c has
        moved onto the draft. The codes of the set contribute c / 2, since their new probability is 0. The draft
        contributes the rest. For the arguments see `RelaxedSets.admits`.
        """
        before = token_probs.expand_as(mass)
        after = token_probs + mass
        middle = (before + after) / 2
        at_token = (torch.xlogy(before, before) + torch.xlogy(after, after)) / 2 - torch.xlogy(middle, middle)  # nats
        return mass / 2 + at_token / math.log(2) <= self.delta


class MultiplicativeBound(RelaxedSets):
    """LANTERN++'s bound: the relaxed set A(x) of a draft x has a total probability of at most (lambda - 1) t(x).

    t(x) is the target probability of x. A(x) holds the nearest codes whose probability is added to t(x). No parameter
    bounds the distance of the output distribution from the target's, since the limit grows with t(x).

    Attributes:
        lambda_: lambda, an upper bound of the factor s(x) / t(x) by which relaxation raises the probability of x.

    Source: LANTERN++ (arXiv 2502.06352), section 3.
    """

    lambda_: float

    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor | float) -> torch.Tensor:
        """Return for each set of nearest codes whether its total probability is <= (lambda - 1) t(x).

        t(x) is the target probability of the draft x, and lambda the attribute `lambda_`. For the arguments see
        `RelaxedSets.admits`.
        """
        return mass <= (self.lambda_ - 1) * token_probs


class BudgetBound(RelaxedSets):
    """A bound that Lantern adds to those of the papers: all children of a node share one budget of probability.

    The relaxed set of a child holds the nearest codes whose probability is added to the child's. The total target
    probability of all these sets is at most delta. Children that were drafted first use the budget first. With
    deterministic drafts, the total variation (TV) between the distribution of the emitted token and the target's is
    therefore at most delta at every node.

    This does not hold at temperature 0. The target then emits one token with certainty. If another token is emitted,
    the TV is 1. At temperature 0 every draft has a separate budget, see `GreedyWithinBound`.

    Attributes:
        delta: the budget, a probability.
    """

    delta: float
    renormalises = False
    leaves_filters = False

    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor | float) -> torch.Tensor:
        """Return for each set of nearest codes whether its total probability is <= delta - spent.

        The difference is the part of the budget that earlier siblings have not used. For the arguments see
        `RelaxedSets.admits`.
        """
        return mass <= self.delta - spent


class Proximity(RelaxedSets):
    """Proximity acceptance, which Lantern adds: a draft is accepted if the target samples it or a similar code.

    The similar codes are the k nearest codes of the draft, whatever their probability. Drafts that top-k or top-p
    filtering removed are not accepted.

    A *substitution* is an emitted token that differs from the token that the target sampled. The share of substitutions
    among the emitted tokens is an upper limit of the total variation from the target.
    """

    renormalises = False
    leaves_filters = False

    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor | float) -> torch.Tensor:
        """Return True for every set of nearest codes, see `RelaxedSets.admits`."""
        return torch.ones_like(mass, dtype=torch.bool)

    def make_verifier(self, spec: MethodSpec, sampling: SamplingConfig) -> Verifier:
        """Make the verifier that accepts a draft if the target samples the draft or one of its nearest codes.

        For the arguments see `Acceptance.make_verifier`.
        """
        return ByProximity(self)


class ByProximity(Verifier):
    """The verifier of `Proximity`: it accepts a draft if the target samples the draft or one of its k nearest codes.

    The target samples at the draft's parent. If one sibling equals the sample and another is only near it, the equal
    one is accepted. Drafts that top-k or top-p filtering removed are not accepted.

    Args:
        sets: the acceptance, with the table of nearest codes.
    """

    def __init__(self, sets: RelaxedSets) -> None:
        self.sets = sets

    def verify_nodes(self, scores: Scores, children: torch.Tensor, draft_probs: torch.Tensor | None) -> Choice:
        """Accept the child that equals the target's sample, or else the first child near the sample.

        A child is near a token if the token is one of its nearest codes. For the arguments see `Verifier.verify_nodes`.
        """
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
    """The verifier of relaxed sets: a draft x is accepted if the target samples x or a code of its relaxed set A(x).

    A(x) holds nearest codes of x. The drafts are deterministic. The output distribution is the same as if the children
    were tested one by one. In this test, x is accepted with probability s(x), the total target probability of x and
    A(x). A rejection removes x and A(x) from the target distribution.

    With the bounds of the LANTERN papers, drafts that top-k or top-p filtering removed may be accepted. With
    `BudgetBound` they are not.

    Args:
        sets: the acceptance that determines A(x).
    """

    def __init__(self, sets: RelaxedSets) -> None:
        self.sets = sets

    def verify_nodes(self, scores: Scores, children: torch.Tensor, draft_probs: torch.Tensor | None) -> Choice:
        """Accept the first child for which the target samples the child itself or a code of its relaxed set.

        If there is no such child, the sampled token is emitted. For the arguments see `Verifier.verify_nodes`.
        """
        best, sampled = scores.keys.max(-1)
        probs = scores.weights.softmax(-1)
        if self.has_twins:  # a second draft of the same token must not enlarge the token's set
            is_twin = (children[..., :, None] == children[..., None, :]).tril(-1).any(-1)
            children = children.masked_fill(is_twin, -1)
        masses = [mass.gather(-1, sampled[..., None]) for *_, mass in self.sets.walk(probs, children)]
        # y is in the first set whose removal leaves y with probability 0.
        rank = (torch.cat(masses, dim=-1) > 0).sum(-1) if masses else torch.zeros_like(sampled)
        return Choice(token_of(rank, children, sampled), sampled, best)


class GreedyWithinBound(Verifier):
    """The verifier of relaxed sets at temperature 0: it accepts a draft x if no code has a probability above s(x).

    s(x) is the total target probability of x and of its relaxed set A(x), which holds nearest codes of x.
    Probabilities are the softmax of the guided logits, without temperature and filters. If two are equal, the lower
    code counts as more probable.

    s(x) is compared with the target probabilities of all other codes, also of those in A(x). The latter can never be
    larger, since s(x) includes them.

    Args:
        sets: the acceptance that computes s(x).
        takes_first_leaf: which of several accepted paths of the same length wins. If False, the path whose last node
            has the lowest number wins. If True, it is the path whose last node has the lowest-numbered leaf among its
            descendants, or is this leaf.

    Source: jadohu/LANTERN models/kv_variants/utils.py (evaluate_posterior, greedy branch).
    """

    def __init__(self, sets: RelaxedSets, takes_first_leaf: bool = False) -> None:
        self.sets = sets
        self.takes_first_leaf = takes_first_leaf

    def order_of_nodes(self, tree: DraftTree) -> torch.Tensor | None:
        """Return for each node the number of the lowest-numbered leaf below it, and for a leaf its own number.

        Of several longest accepted paths, the one that leads to the lowest-numbered leaf then wins. The result is None
        if `takes_first_leaf` is False. For the argument see `Verifier.order_of_nodes`.
        """
        return first_leaf(tree) if self.takes_first_leaf else None

    def verify_all(self, scores: Scores, proposal: Proposal) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Accept every draft x whose relaxed probability s(x) exceeds the target probability of every other code.

        Several siblings may be accepted. For arguments and results see `Verifier.verify_all`.
        """
        best, sampled = scores.logits.max(-1)
        tokens = proposal.tokens
        parents = proposal.tree.parents.expand(tokens.shape)
        probs = scores.logits.softmax(-1)
        top_probs, top = probs.max(-1)
        top_probs_of_parent = top_probs.gather(1, parents)
        top_of_parent = top.gather(1, parents)
        codes = self.sets.nearest(tokens.clamp(min=0))
        # The probabilities of these codes at the parent, without a copy of the parent's whole distribution per node.
        index = parents[..., None] * probs.shape[-1] + codes
        masses = probs.flatten(1).gather(1, index.flatten(1)).view(codes.shape)
        relaxed_prob = self.sets.grow(codes, masses).relaxed_prob.squeeze(-1)
        is_tie = (relaxed_prob == top_probs_of_parent) & (tokens < top_of_parent)
        is_most_probable = (tokens == top_of_parent) | (relaxed_prob > top_probs_of_parent) | is_tie
        return is_most_probable & (tokens >= 0), sampled, best
