"""Relaxations: which of a draft's nearest codes may stand in for it, the relaxed set A(x).

A relaxation bounds the target mass of A(x), which is always a prefix of the k nearest codes of x. How far each departs
from the target's distribution is measured by `workflow/lantern_pipeline/metrics/output_distribution.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch

from lantern.methods import RELAXATIONS, MethodSpec, check_bounds


@dataclass(frozen=True)
class Relaxation:
    """How many of a draft's nearest codes may stand in for it: the base of all relaxations.

    Attributes:
        k: nearest codes considered.
        renormalises: whether the target's mass is rescaled to 1 after a rejection, before the next sibling's bound
            applies.
        bounds_mass: whether A(x) depends on its mass; one that does not needs no distribution to be verified.

    Raises:
        ValueError: k < 0.
    """

    k: int
    renormalises: ClassVar[bool] = True
    bounds_mass: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.k < 0:
            raise ValueError(f"k must be >= 0, got {self.k}; 0 is exact decoding")

    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor) -> torch.Tensor:
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

    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor) -> torch.Tensor:
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

    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor) -> torch.Tensor:
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

    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor) -> torch.Tensor:
        """Mass <= (lambda - 1) t(x)."""
        return mass <= (self.lambda_ - 1) * token_probs


class BudgetBound(AdditiveBound):
    """Ours: the children of a node share one budget delta of target mass, in drafting order.

    With deterministic (top) drafts at most delta of the mass moves, so TV <= delta at every node.

    Raises:
        ValueError: delta outside [0, 1], or k < 0.
    """

    renormalises = False

    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor) -> torch.Tensor:
        """Mass <= what earlier siblings have left of the budget."""
        return mass <= self.delta - spent


@dataclass(frozen=True)
class Proximity(Relaxation):
    """Ours: A(x) is all of the k nearest codes, whatever their mass: "the draft is a look-alike of what the target
    drew".

    TV from the target is at most the rate of substitutions (emitted token other than y), which is counted.

    Raises:
        ValueError: k < 0.
    """

    renormalises = False
    bounds_mass = False

    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor) -> torch.Tensor:
        """Any mass."""
        return torch.ones_like(mass, dtype=torch.bool)


# By the names of `lantern.methods.RELAXATIONS`; "none" has no class.
CLASSES: dict[str, type[Relaxation]] = {
    "additive": AdditiveBound,
    "jensen_shannon": JensenShannonBound,
    "multiplicative": MultiplicativeBound,
    "bounded": BudgetBound,
    "proximity": Proximity,
}


def make_relaxation(spec: MethodSpec) -> Relaxation | None:
    """The relaxation object of a method; None for exact decoding, which delta = 0 and lambda = 1 are too."""
    if not spec.is_relaxed or spec.delta == 0 or spec.lambda_ == 1:
        return None
    parameters = RELAXATIONS[spec.relaxation].parameters
    return CLASSES[spec.relaxation](**{name: getattr(spec, name) for name in parameters})


@dataclass
class RelaxedSet:
    """A(x) of some drafts x.

    Attributes:
        codes: int64, (..., k): the nearest codes of x.
        is_member: bool, (..., k): which of them are in A(x); always a prefix.
        mass: (...): target mass of A(x).
    """

    codes: torch.Tensor
    is_member: torch.Tensor
    mass: torch.Tensor


def relaxed_set(
    probs: torch.Tensor, tokens: torch.Tensor, table: torch.Tensor, relaxation: Relaxation, spent: torch.Tensor
) -> RelaxedSet:
    """Grows A(x): the longest prefix of the nearest codes of x whose target mass stays within the bound.

    Args:
        probs: target mass, (..., vocab); codes already removed at the node are 0.
        tokens: int64, (...): drafts x.
        table: int64, (vocab, >= k): nearest codes.
        relaxation: the bound.
        spent: (...): mass that earlier siblings have merged.

    Returns:
        See `RelaxedSet`.
    """
    codes = table[:, : relaxation.k][tokens]
    cumulative = probs.gather(-1, codes).cumsum(-1)
    is_member = relaxation.admits(cumulative, probs.gather(-1, tokens[..., None]), spent[..., None])
    mass = (cumulative * is_member).amax(-1) if relaxation.k else torch.zeros_like(spent)
    return RelaxedSet(codes, is_member, mass)


def walk_children(
    probs: torch.Tensor, children: torch.Tensor, table: torch.Tensor, relaxation: Relaxation
) -> Iterator[tuple[torch.Tensor, torch.Tensor, RelaxedSet]]:
    """Grows the relaxed sets of deterministic drafts, sibling after sibling; a code taken by one has no mass for the
    next.

    Args:
        probs: target distribution, (..., vocab).
        children: int64, (..., m): drafted tokens, -1 where there is none.
        table: int64, (vocab, >= k): nearest codes.
        relaxation: the bound.

    Yields:
        For each rank: token, int64 (...), 0 where there is none; whether there is one, bool (...); its A(x).
    """
    spent = torch.zeros_like(probs[..., 0])
    for rank in range(children.shape[-1]):
        is_drafted = children[..., rank] >= 0
        token = children[..., rank].clamp(min=0)
        relaxed = relaxed_set(probs, token, table, relaxation, spent)
        yield token, is_drafted, relaxed
        if rank + 1 < children.shape[-1]:
            reduced = remove_relaxed_set(probs, token, relaxed)
            if relaxation.renormalises:
                reduced = reduced / reduced.sum(-1, keepdim=True).clamp(min=torch.finfo(probs.dtype).tiny)
            probs = torch.where(is_drafted[..., None], reduced, probs)
            spent = spent + relaxed.mass * is_drafted


def remove_relaxed_set(probs: torch.Tensor, token: torch.Tensor, relaxed: RelaxedSet) -> torch.Tensor:
    """Sets the mass of {x} and A(x) to 0; (..., vocab)."""
    kept = probs.gather(-1, relaxed.codes) * ~relaxed.is_member
    return probs.scatter(-1, relaxed.codes, kept).scatter(-1, token[..., None], 0.0)
