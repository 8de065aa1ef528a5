"""Relaxations: which of a draft's nearest codes may stand in for it, the relaxed set A(x).

A relaxation bounds the target mass of A(x), which is always a prefix of the k nearest codes of x. How far each departs
from the target's distribution is measured by `workflow/lantern_pipeline/metrics/output_distribution.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F

from lantern.methods import RELAXATIONS, MethodSpec, check_bounds
from lantern.peer_relaxations import AnnealedWeights, ConstantWeights, PeerRelaxation, ProbabilityGroup, ReversedWeights


@dataclass(frozen=True)
class Relaxation:
    """How many of a draft's nearest codes may stand in for it: the base of all relaxations.

    Attributes:
        k: nearest codes considered.
        renormalises: whether the target's mass is rescaled to 1 after a rejection, before the next sibling's bound
            applies.
        bounds_mass: whether A(x) depends on its mass; one that does not needs no distribution to be verified.
        leaves_filters: whether a draft that the target's filters took away may be accepted for what its nearest codes
            hold; so it is in the papers, not in the rules of ours.

    Raises:
        ValueError: k < 0.
    """

    k: int
    renormalises: ClassVar[bool] = True
    bounds_mass: ClassVar[bool] = True
    leaves_filters: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.k < 0:
            raise ValueError(f"k must be >= 0, got {self.k}; 0 is exact decoding")

    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor | float) -> torch.Tensor:
        """Whether A(x) may have this mass (..., k), for drafts of target probability token_probs (..., 1), after
        `spent` (..., 1) at this node; once False along k, False ever after.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class AdditiveBound(Relaxation):
    """LANTERN: A(x) is the longest prefix of the k nearest codes with mass <= delta.

    The output distribution departs from the target's: with one deterministic draft TV <= delta, with several
    1 - (1 - delta)^m, and with sampled drafts there is no such bound.

    Raises:
        ValueError: delta outside [0, 1], or k < 0.

    Source: LANTERN (arXiv 2410.03355), section 4.
    """

    delta: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bounds(delta=self.delta)

    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor | float) -> torch.Tensor:
        """Mass <= delta, the same for every draft."""
        return mass <= self.delta


class JensenShannonBound(AdditiveBound):
    """LANTERN with another distance: A(x) is the longest prefix of the k nearest codes for which the Jensen-Shannon
    divergence of t~ and t, in bits, is <= delta.

    t~ is t with A(x)'s mass c moved onto x, so that the divergence depends on t(x) and c alone; it grows with c and is
    at most c, hence a set at least as large as the additive bound's. What holds of TV there holds here.

    Raises:
        ValueError: delta outside [0, 1], or k < 0.

    Source: LANTERN (arXiv 2410.03355), the paper's comparison of distances.
    """

    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor | float) -> torch.Tensor:
        """JSD(t~, t) <= delta: c / 2 from the codes of A(x), which only t holds, and the rest from x itself."""
        before, after = token_probs.expand_as(mass), token_probs + mass
        middle = (before + after) / 2
        at_token = (torch.xlogy(before, before) + torch.xlogy(after, after)) / 2 - torch.xlogy(middle, middle)  # nats
        return mass / 2 + at_token / math.log(2) <= self.delta


@dataclass(frozen=True)
class MultiplicativeBound(Relaxation):
    """LANTERN++: A(x) is the longest prefix of the k nearest codes with mass <= (lambda - 1) t(x).

    The output distribution departs from the target's without a bound of its own: likely drafts draw in more mass.

    Raises:
        ValueError: lambda_ < 1, or k < 0.

    Source: LANTERN++ (arXiv 2502.06352), section 3.
    """

    lambda_: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bounds(lambda_=self.lambda_)

    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor | float) -> torch.Tensor:
        """Mass <= (lambda - 1) t(x)."""
        return mass <= (self.lambda_ - 1) * token_probs


class BudgetBound(AdditiveBound):
    """Ours: the children of a node share one budget delta of target mass, in drafting order.

    With deterministic (top) drafts at most delta of the mass moves, so TV <= delta at every node. That holds at
    temperatures above 0 only: greedy decoding emits one token with certainty, so that any other is a TV of 1; there
    every draft has a budget of its own, see `lantern.acceptance.accept_greedy`.

    Raises:
        ValueError: delta outside [0, 1], or k < 0.
    """

    renormalises = False
    leaves_filters = False

    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor | float) -> torch.Tensor:
        """Mass <= what earlier siblings have left of the budget."""
        return mass <= self.delta - spent


@dataclass(frozen=True)
class Proximity(Relaxation):
    """Ours: A(x) is all of the k nearest codes, whatever their mass: "the draft is a look-alike of what the target
    drew".

    TV from the target is at most the rate of substitutions (emitted token other than y), which is counted. Codes that
    the target's filters took away are never emitted.

    Raises:
        ValueError: k < 0.
    """

    renormalises = False
    bounds_mass = False
    leaves_filters = False

    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor | float) -> torch.Tensor:
        """Any mass."""
        return torch.ones_like(mass, dtype=torch.bool)


# By the names of `lantern.methods.RELAXATIONS`; "none" has no class.
CLASSES: dict[str, type[Relaxation | PeerRelaxation]] = {
    "additive": AdditiveBound,
    "jensen_shannon": JensenShannonBound,
    "multiplicative": MultiplicativeBound,
    "bounded": BudgetBound,
    "proximity": Proximity,
    "annealed": AnnealedWeights,
    "constant": ConstantWeights,
    "reversed": ReversedWeights,
    "group": ProbabilityGroup,
}


def make_relaxation(spec: MethodSpec) -> Relaxation | PeerRelaxation | None:
    """The relaxation object of a method; None for exact decoding, which delta = 0 and lambda = 1 are too, and where
    drafts are judged as in exact decoding.
    """
    is_of_drafts = RELAXATIONS[spec.relaxation].is_of_drafts
    if is_of_drafts or spec.relaxation == "none" or spec.delta == 0 or spec.lambda_ == 1:
        return None
    parameters = RELAXATIONS[spec.relaxation].parameters
    return CLASSES[spec.relaxation](**{name: getattr(spec, name) for name in parameters})


@dataclass
class RelaxedSet:
    """A(x) of some drafts x.

    Attributes:
        codes: int64, (..., k): the nearest codes of x.
        is_member: bool, (..., k): which of them are in A(x); always a prefix.
        cumulative: (..., k): target mass of each prefix.
        token_probs: (..., 1): target mass of x, or what its group offers for it.
        taken: int64, (..., k + 1): {x} and A(x), x repeated and at the end.
    """

    codes: torch.Tensor
    is_member: torch.Tensor
    cumulative: torch.Tensor
    token_probs: torch.Tensor
    taken: torch.Tensor
    _surrogate: torch.Tensor | None = field(default=None, init=False)

    @property
    def mass(self) -> torch.Tensor:
        """Target mass of A(x), (..., 1)."""
        if not self.codes.shape[-1]:
            return torch.zeros_like(self.token_probs)
        return (self.cumulative * self.is_member).amax(-1, keepdim=True)

    @property
    def surrogate(self) -> torch.Tensor:
        """s(x), the target mass of {x} and A(x), (..., 1)."""
        if self._surrogate is None:
            self._surrogate = self.token_probs + self.mass
        return self._surrogate


def with_nearest(table: torch.Tensor, tokens: torch.Tensor, k: int) -> torch.Tensor:
    """Nearest codes of drafts, then the draft itself.

    Args:
        table: (vocab, >= k): nearest codes, whole numbers of any width.
        tokens: int64, (...): drafts, -1 where there is none.
        k: nearest codes wanted.

    Returns:
        int64, (..., k + 1); `vocab`, the number of no code, where there is no draft.
    """
    codes = table.index_select(0, tokens.clamp(min=0).flatten())[:, :k].long()
    codes = torch.cat([codes.reshape(*tokens.shape, codes.shape[1]), tokens[..., None]], dim=-1)
    return torch.where(tokens[..., None] < 0, len(table), codes)


def relaxed_set(
    probs: torch.Tensor, tokens: torch.Tensor, table: torch.Tensor, relaxation: Relaxation, spent: torch.Tensor
) -> RelaxedSet:
    """Grows A(x): the longest prefix of the nearest codes of x whose target mass stays within the bound.

    Args:
        probs: target mass, (..., vocab); codes already removed at the node are 0.
        tokens: int64, (...): drafts x.
        table: (vocab, >= k): nearest codes, whole numbers.
        relaxation: the bound.
        spent: (...): mass that earlier siblings have merged.

    Returns:
        See `RelaxedSet`.
    """
    codes = with_nearest(table, tokens, relaxation.k)
    return grow_set(codes, probs.gather(-1, codes), relaxation, spent[..., None])


def grow_set(
    codes: torch.Tensor, masses: torch.Tensor, relaxation: Relaxation, spent: torch.Tensor | float = 0.0
) -> RelaxedSet:
    """As `relaxed_set`, from the codes that `with_nearest` gives and their target masses, both (..., k + 1); spent
    (..., 1).
    """
    cumulative, token = masses.cumsum(-1), codes[..., -1:]
    is_member = relaxation.admits(cumulative, masses[..., -1:], spent)
    taken = torch.where(is_member, codes, token)  # the last is the draft, member or not
    return RelaxedSet(codes[..., :-1], is_member[..., :-1], cumulative[..., :-1], masses[..., -1:], taken)


def walk_children(
    probs: torch.Tensor, children: torch.Tensor, table: torch.Tensor, relaxation: Relaxation
) -> Iterator[tuple[torch.Tensor, RelaxedSet, torch.Tensor]]:
    """Grows the relaxed sets of deterministic drafts, sibling after sibling; a code taken by one has no mass for the
    next.

    Args:
        probs: target distribution, (..., vocab).
        children: int64, (..., m): drafted tokens, -1 where there is none.
        table: (vocab, >= k): nearest codes, whole numbers.
        relaxation: the bound.

    Yields:
        For each rank: token, int64 (...), -1 where there is none that may be accepted; its A(x), of the code `vocab`
        alone where there is none; the target mass that it and those before have left, (..., vocab + 1), 0 at the end,
        which the next one changes.
    """
    if not relaxation.leaves_filters:
        children = children.masked_fill(probs.gather(-1, children.clamp(min=0)) == 0, -1)
    codes = with_nearest(table, children, relaxation.k)  # (..., m, k + 1)
    left, spent = F.pad(probs, (0, 1)), 0.0
    for rank, token in enumerate(children.unbind(-1)):
        if rank > 0 and relaxation.renormalises:
            left /= left.sum(-1, keepdim=True).clamp_(min=torch.finfo(probs.dtype).tiny)
        own = codes[..., rank, :]
        relaxed = grow_set(own, left.gather(-1, own), relaxation, spent)
        left.scatter_(-1, relaxed.taken, 0.0)
        yield token, relaxed, left
        if not relaxation.renormalises:
            spent = spent + relaxed.mass
