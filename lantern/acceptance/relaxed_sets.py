"""Relaxed sets: the nearest codes of a draft whose target probabilities are added to the draft's.

The relaxed set A(x) of a draft x is the first n of its k nearest codes, without x. Its mass is their total target
probability, and s(x) = t(x) + mass replaces t(x) when x is verified. A *bound* limits the mass and so determines n:
nearest codes of probability 0.06, 0.03 and 0.05 and a bound of 0.1 give n = 2.

Tensors of codes hold the k nearest codes, nearest first, and then x: int64 (..., k + 1). `vocab` stands for no code.

Classes state what their bound implies for TV, the total variation between the emitted token and the target's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from typing_extensions import override

from lantern.acceptance.base import Acceptance, Choice, Merged, Verifier, token_of
from lantern.extensions import import_object, load_class
from lantern.methods import MethodSpec
from lantern.parameters import ParameterValue
from lantern.registry import RESIDUALS
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels
from lantern.step import Proposal, Scores

MASSES_AT_ONCE = 2**22  # number of masses in memory at the same time; `taken` of as many codes is 32 MiB


@dataclass
class GrownSet:
    """The relaxed sets of some drafts x."""

    taken: torch.Tensor  # as in `Merged`: (..., k + 1), with x in place of nearest codes that are not in A(x)
    codes: torch.Tensor  # (..., k), nearest first
    is_member: torch.Tensor  # (..., k), whether each of `codes` is in A(x); no True after a False
    cumulative: torch.Tensor  # (..., k), sum of t over the nearest codes up to each one
    token_probs: torch.Tensor  # t(x), (..., 1)

    @property
    def mass(self) -> torch.Tensor:
        """The mass of A(x), (..., 1)."""
        if not self.codes.shape[-1]:
            return torch.zeros_like(self.token_probs)
        return (self.cumulative * self.is_member).amax(-1, keepdim=True)  # that of the last member: sums never fall

    @property
    def relaxed_prob(self) -> torch.Tensor:
        """s(x), (..., 1)."""
        return self.token_probs + self.mass


class RelaxedSets(Acceptance):
    """The base class of acceptances with relaxed sets. A subclass defines the bound, `admits`."""

    k: int
    # Whether t is rescaled to sum to 1 after a rejection, before the bound is applied to the next sibling.
    renormalises: ClassVar[bool] = True
    # Whether a draft that top-k or top-p filtering removed may be accepted if its nearest codes have probability. True
    # for the acceptances of the LANTERN papers.
    leaves_filters: ClassVar[bool] = True
    has_one_residual = False  # it depends on A(x)

    def __init__(self, table: torch.Tensor, **parameters: ParameterValue) -> None:
        super().__init__(**parameters)
        self.table = table  # (vocab, k or more), nearest first, integers of any dtype

    @classmethod
    @override
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> RelaxedSets:
        columns = spec["k"] + (0 if sampling.is_greedy else RESIDUALS[spec.residual].extra_codes)
        table = models.nearest_codes
        if table is None or table.shape[1] < columns:
            found = "no table" if table is None else f"a table of {table.shape[1]} columns"
            raise ValueError(f"method {spec.label} needs the {columns} nearest codes, got {found}")
        _residual_function(RESIDUALS[spec.residual].path)  # imported before the first step
        # A smaller table is faster to index, and a verifier may read all of its columns, as `ByProximity` does.
        return cls(table[:, :columns].contiguous(), **spec.parameters)

    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor | float) -> torch.Tensor:
        """Return which sets of nearest codes are within the bound, bool (..., sets).

        Set i holds the i + 1 nearest codes, and `mass`, (..., sets), is its total target probability. After the first
        False all entries must be False: [True, True, False] means that the two nearest codes are within the bound, but
        not the three nearest. There may be one more set at the end, the k nearest codes with x. Its entry is ignored.

        `spent`, (..., 1), is the mass of the relaxed sets of earlier siblings of x. It is 0 unless `renormalises` is
        False.
        """
        raise NotImplementedError

    @override
    def codes_of(self, tokens: torch.Tensor, k: int | None = None) -> torch.Tensor:
        """Return the k nearest codes of drafts, then the draft itself, (..., k + 1).

        For a missing draft, -1, all entries are `vocab`.
        """
        width = self.k if k is None else k
        # `gather` takes int64 only. The table has smaller integers.
        codes = self.table.index_select(0, tokens.clamp(min=0).flatten())[:, :width].long()
        codes = codes.reshape(*tokens.shape, codes.shape[1])
        codes = torch.cat([codes, tokens[..., None]], dim=-1)
        return torch.where(tokens[..., None] < 0, len(self.table), codes)

    def grow(self, codes: torch.Tensor, masses: torch.Tensor, spent: torch.Tensor | float = 0.0) -> GrownSet:
        """Return the relaxed set A(x) of each draft x: as many of its nearest codes as the bound allows.

        `masses` are the probabilities of `codes` that earlier siblings have left, and `spent` is as in `admits`.
        """
        token = codes[..., -1:]
        token_probs = masses[..., -1:]
        # The last sum, of the k nearest codes with x, is no relaxed set: it is cut off below.
        cumulative = masses.cumsum(-1)
        is_member = self.admits(cumulative, token_probs, spent)
        taken = torch.where(is_member, codes, token)  # the last one is x, whatever its `is_member`
        return GrownSet(taken, codes[..., :-1], is_member[..., :-1], cumulative[..., :-1], token_probs)

    @override
    def merge(self, probs: torch.Tensor, draft_probs: torch.Tensor | None, codes: torch.Tensor) -> Merged:
        grown = self.grow(codes, probs.gather(-1, codes))
        return Merged(grown.taken, grown.relaxed_prob)

    @override
    def residual(
        self, kind: str, probs: torch.Tensor, merged: Merged | None, draft_probs: torch.Tensor | None
    ) -> torch.Tensor:
        function = _residual_function(RESIDUALS[kind].path)
        if function is not None:
            return function(self, probs, merged, draft_probs)
        if draft_probs is None or kind == "matched":
            return super().residual(kind, probs, merged, draft_probs)
        assert merged is not None
        # t~: 0 at A(x), s(x) at x, and t elsewhere.
        moved = probs.scatter(-1, merged.taken, 0.0).scatter_(-1, merged.taken[..., -1:], merged.relaxed_prob)
        return moved.sub_(draft_probs).clamp_(min=0)

    @override
    def relaxed_prob(self, probs: torch.Tensor, draft_probs: torch.Tensor | None, tokens: torch.Tensor) -> torch.Tensor:
        codes = self.codes_of(tokens)
        masses = probs.gather(-1, codes.flatten(-2)).view_as(codes)
        return self.grow(codes, masses).relaxed_prob.squeeze(-1)

    @override
    def relaxed_prob_of_all(self, probs: torch.Tensor, draft_probs: torch.Tensor | None) -> torch.Tensor:
        vocab = probs.shape[-1]
        rows = probs.reshape(-1, vocab)
        parts = []
        # In parts, since all codes together have vocab * (k + 1) masses per node.
        codes_at_once = max(1, MASSES_AT_ONCE // (len(rows) * (self.k + 1)))
        for tokens in torch.arange(vocab, device=probs.device).split(codes_at_once):
            codes = self.codes_of(tokens)
            masses = rows.index_select(1, codes.flatten()).view(-1, *codes.shape)  # (rows, codes, k + 1)
            parts.append(self.grow(codes, masses).relaxed_prob.squeeze(-1))
        return torch.cat(parts, dim=-1).view_as(probs)

    def walk(
        self, probs: torch.Tensor, children: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, GrownSet, torch.Tensor]]:
        """Yield the relaxed sets of the m deterministic drafts of each node, one sibling after the other.

        Yields:
            For each sibling its token, or -1 if there is none or it may not be accepted; its relaxed set, of which all
            codes are `vocab` if there is no token; and the probabilities that remain for later siblings, (..., vocab +
            1), with a last entry of 0 for `vocab`. The next iteration changes this tensor.
        """
        if not self.leaves_filters:
            is_removed = probs.gather(-1, children.clamp(min=0)) == 0
            children = children.masked_fill(is_removed, -1)
        codes = self.codes_of(children)  # (..., m, k + 1)
        # A column of probability 0 for `vocab`: missing drafts then need no branch.
        mass = F.pad(probs, (0, 1))
        tiny = torch.finfo(probs.dtype).tiny  # if nothing is left: 0 / tiny is 0, not nan
        spent: torch.Tensor | float = 0.0
        for rank, token in enumerate(children.unbind(-1)):
            if rank > 0 and self.renormalises:
                mass /= mass.sum(-1, keepdim=True).clamp_(min=tiny)
            codes_of_token = codes[..., rank, :]
            merged = self.grow(codes_of_token, mass.gather(-1, codes_of_token), spent)
            # A rejection of x removes x and A(x). `taken` ends with x.
            mass.scatter_(-1, merged.taken, 0.0)
            yield token, merged, mass
            # With rescaling, the removed mass does not count against later siblings, and `spent` stays 0.
            if not self.renormalises:
                spent = spent + merged.mass

    @override
    def make_verifier(self, spec: MethodSpec, sampling: SamplingConfig) -> Verifier:
        if sampling.is_greedy:
            return load_class(RESIDUALS[spec.residual].greedy_verifier)(self)
        return WithinBound(self)


# By path. Not functools.cache, since torch.compile would trace what it wraps, and it cannot trace an import.
_RESIDUALS: dict[str, Callable[..., torch.Tensor] | None] = {"": None}


def _residual_function(path: str) -> Callable[..., torch.Tensor] | None:
    """Return the function of a `ResidualRow`, or None if the row has none."""
    if path not in _RESIDUALS:
        _RESIDUALS[path] = import_object(path, "a function as module:name")
    return _RESIDUALS[path]


class AdditiveBound(RelaxedSets):
    """LANTERN's bound: mass <= delta.

    TV is at most delta with one deterministic draft per node, and at most 1 - (1 - delta)^m with m. With sampled
    drafts, delta does not bound it.

    Source: LANTERN (arXiv 2410.03355), section 4.
    """

    delta: float

    @override
    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor | float) -> torch.Tensor:
        return mass <= self.delta


class JensenShannonBound(RelaxedSets):
    """A variant of LANTERN's bound: a Jensen-Shannon divergence of at most delta bits.

    The divergence between the target distribution before and after the mass c of A(x) has moved onto x is

        JS(c) = c / 2 + [h(t(x)) + h(t(x) + c)] / 2 - h(t(x) + c / 2), with h(q) = q log2 q.

    It grows with c, and is between c / 2 and c. A(x) is therefore at least as large as with `AdditiveBound` and the
    same delta, and c is at most 2 delta. With one deterministic draft per node, TV is c. With m and delta <= 1/2, it is
    at most 1 - (1 - 2 delta)^m. With sampled drafts, delta does not bound it.

    Source: LANTERN (arXiv 2410.03355), the paper's comparison of distances.
    """

    delta: float

    @override
    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor | float) -> torch.Tensor:
        before = token_probs.expand_as(mass)
        after = token_probs + mass
        middle = (before + after) / 2
        # xlogy(0, 0) is 0, the limit of q log q. A code of A(x) falls from q to 0 and contributes h(q) / 2 - h(q / 2) =
        # q / 2, hence A(x) contributes c / 2.
        at_token = (torch.xlogy(before, before) + torch.xlogy(after, after)) / 2 - torch.xlogy(middle, middle)  # nats
        return mass / 2 + at_token / math.log(2) <= self.delta


class MultiplicativeBound(RelaxedSets):
    """LANTERN++'s bound: mass <= (lambda - 1) t(x), that is, s(x) <= lambda t(x).

    It grows with t(x), so that no parameter bounds TV.

    Source: LANTERN++ (arXiv 2502.06352), section 3.
    """

    lambda_: float

    @override
    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor | float) -> torch.Tensor:
        return mass <= (self.lambda_ - 1) * token_probs


class WithinBound(Verifier):
    """The verifier of deterministic drafts: x is accepted if the target samples x or a code of A(x).

    The output distribution is that of tests of the children one by one: x is accepted with probability s(x), and a
    rejection removes x and A(x) from the target distribution.
    """

    def __init__(self, sets: RelaxedSets) -> None:
        self.sets = sets

    @override
    def verify_nodes(self, scores: Scores, children: torch.Tensor, draft_probs: torch.Tensor | None) -> Choice:
        best, sampled = scores.keys.max(-1)
        probs = scores.weights.softmax(-1)
        if self.has_twins:  # a second draft of the same token must not enlarge the token's set
            # Whether an earlier sibling, left of the diagonal, holds the same token.
            is_twin = (children[..., :, None] == children[..., None, :]).tril(-1).any(-1)
            children = children.masked_fill(is_twin, -1)
        # One sample y of t decides all siblings: testing them one by one accepts the first sibling whose set, with the
        # sibling itself, holds y. `masses` is the probability of y that each sibling leaves. It is positive before that
        # sibling, and 0 from there on. Hence the number of positive ones is its rank, or m if no set holds y.
        masses = [mass.gather(-1, sampled[..., None]) for *_, mass in self.sets.walk(probs, children)]
        rank = (torch.cat(masses, dim=-1) > 0).sum(-1) if masses else torch.zeros_like(sampled)
        return Choice(token_of(rank, children, sampled), sampled, best)


class GreedyWithinBound(Verifier):
    """The verifier at temperature 0: it accepts a draft x if no code has a probability above s(x).

    Probabilities are the softmax of the guided logits, without temperature and filters. If two are equal, the lower
    code counts as more probable.

    Source: jadohu/LANTERN models/kv_variants/utils.py (evaluate_posterior, greedy branch).
    """

    def __init__(self, sets: RelaxedSets) -> None:
        self.sets = sets

    @override
    def verify_all(self, scores: Scores, proposal: Proposal) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        best, sampled = scores.logits.max(-1)
        tokens = proposal.tokens
        parents = proposal.tree.parents.expand(tokens.shape)
        probs = scores.logits.softmax(-1)
        # It is enough to compare s(x) with the largest probability at the parent of x, even if it is that of a code in
        # A(x): s(x) includes it.
        top_probs, top = probs.max(-1)
        top_probs_of_parent = top_probs.gather(1, parents)
        top_of_parent = top.gather(1, parents)
        codes = self.sets.codes_of(tokens.clamp(min=0))  # (batch, nodes, k + 1)
        # The probabilities of these codes at the parent, without a copy of the parent's whole distribution per node.
        index = parents[..., None] * probs.shape[-1] + codes
        masses = probs.flatten(1).gather(1, index.flatten(1)).view(codes.shape)
        relaxed_prob = self.sets.grow(codes, masses).relaxed_prob.squeeze(-1)
        is_tie = (relaxed_prob == top_probs_of_parent) & (tokens < top_of_parent)
        is_most_probable = (tokens == top_of_parent) | (relaxed_prob > top_probs_of_parent) | is_tie
        return is_most_probable & (tokens >= 0), sampled, best
