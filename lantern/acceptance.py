"""Verification: which drafted tokens are accepted, and what is emitted where the drafts end.

Two ways to verify. *Sampled once* (top and coupled drafts): the target's own token y is drawn at every node of the
tree, and a node accepts its first child whose relaxed set {x} and A(x) holds y. *By rejection* (sampled drafts):
children are accepted one after the other with probability s(x) / p(x), a rejection leaves the residual distribution.
Both work on all nodes at once, on fixed shapes and without host synchronisation. A relaxation says how large A(x) may
grow.

Shapes: inner = nodes that may have children, m = most children of one node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


class Relaxation(Protocol):
    """How many of a draft's nearest codes may stand in for it.

    Attributes:
        k: nearest codes considered.
        renormalises: whether the target's mass is rescaled to 1 after a rejection, before the next sibling's bound
            applies.
    """

    k: int
    renormalises: bool

    def bound(self, token_probs: torch.Tensor, spent: torch.Tensor) -> torch.Tensor | float:
        """Largest mass that A(x) may have, for drafts of target probability token_probs, after `spent` at this node."""
        ...


@dataclass(frozen=True)
class AdditiveBound:
    """LANTERN: A(x) is the longest prefix of the k nearest codes with mass <= delta.

    The law departs from the target's: with one deterministic draft TV <= delta, with several 1 - (1 - delta)^m, and
    with sampled drafts there is no such bound (reference/acceptance.md, "What the bound bounds").

    Raises:
        ValueError: delta outside [0, 1], or k < 0.

    Source: LANTERN (arXiv 2410.03355), section 4.
    """

    k: int
    delta: float
    renormalises = True

    def __post_init__(self) -> None:
        check_k(self.k)
        check_delta(self.delta)

    def bound(self, token_probs: torch.Tensor, spent: torch.Tensor) -> torch.Tensor | float:
        """The same for every draft: delta."""
        return self.delta


@dataclass(frozen=True)
class MultiplicativeBound:
    """LANTERN++: A(x) is the longest prefix of the k nearest codes with mass <= (lambda - 1) t(x).

    The law departs from the target's without a bound of its own: likely drafts draw in more mass.

    Raises:
        ValueError: lambda_ < 1, or k < 0.

    Source: LANTERN++ (arXiv 2502.06352), section 3.
    """

    k: int
    lambda_: float
    renormalises = True

    def __post_init__(self) -> None:
        check_k(self.k)
        if self.lambda_ < 1:
            raise ValueError(f"lambda_ must be >= 1, got {self.lambda_}; 1 is exact, for the additive bound set delta")

    def bound(self, token_probs: torch.Tensor, spent: torch.Tensor) -> torch.Tensor | float:
        """(lambda - 1) t(x)."""
        return (self.lambda_ - 1) * token_probs


@dataclass(frozen=True)
class BudgetBound:
    """Ours: the children of a node share one budget delta of target mass, in drafting order.

    With deterministic (top) drafts at most delta of the mass moves, so TV <= delta at every node.

    Raises:
        ValueError: delta outside [0, 1], or k < 0.
    """

    k: int
    delta: float
    renormalises = False

    def __post_init__(self) -> None:
        check_k(self.k)
        check_delta(self.delta)

    def bound(self, token_probs: torch.Tensor, spent: torch.Tensor) -> torch.Tensor | float:
        """What earlier siblings have left of the budget."""
        return self.delta - spent


@dataclass(frozen=True)
class Proximity:
    """Ours: A(x) is all of the k nearest codes, whatever their mass: "the draft is a look-alike of what the target
    drew".

    TV from the target is at most the rate of substitutions (emitted token other than y), which is counted.

    Raises:
        ValueError: k < 0.
    """

    k: int
    renormalises = False

    def __post_init__(self) -> None:
        check_k(self.k)

    def bound(self, token_probs: torch.Tensor, spent: torch.Tensor) -> torch.Tensor | float:
        """No bound."""
        return float("inf")


def check_k(k: int) -> None:
    """Raises ValueError unless k is >= 0."""
    if k < 0:
        raise ValueError(f"k must be >= 0, got {k}; 0 is exact decoding")


def check_delta(delta: float) -> None:
    """Raises ValueError unless delta is in [0, 1]."""
    if not 0 <= delta <= 1:
        raise ValueError(f"delta must be in [0, 1], got {delta}; for the multiplicative bound set lambda_")


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
    bound = relaxation.bound(probs.gather(-1, tokens[..., None]), spent[..., None])
    is_member = cumulative <= bound
    mass = (cumulative * is_member).amax(-1) if relaxation.k else torch.zeros_like(spent)
    return RelaxedSet(codes, is_member, mass)


def accept_exact(drawn: torch.Tensor, tokens: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
    """Exact verification, sampled once: a node is accepted if it is the token that the target drew at its parent.

    Args:
        drawn: int64, (batch, nodes): the target's token after each node.
        tokens: int64, (batch, nodes): the tree's tokens.
        parents: int64, (batch or 1, nodes).

    Returns:
        bool, (batch, nodes): accepted by its parent; the root's entry has no meaning.
    """
    return drawn.gather(1, parents.expand(drawn.shape)) == tokens


def accept_look_alikes(
    drawn: torch.Tensor,
    tokens: torch.Tensor,
    parents: torch.Tensor,
    earlier_siblings: torch.Tensor | None,
    table: torch.Tensor,
) -> torch.Tensor:
    """Proximity verification: the first child x with y in {x} or the k nearest codes of x.

    Args:
        drawn: int64, (batch, nodes): y of each node.
        tokens: int64, (batch, nodes).
        parents: int64, (batch or 1, nodes).
        earlier_siblings: bool, (batch or 1, nodes, nodes), or None where no node has a sibling.
        table: int64, (vocab, k): nearest codes.

    Returns:
        bool, (batch, nodes): accepted by its parent.
    """
    own = drawn.gather(1, parents.expand(drawn.shape))
    fits = (tokens == own) | (table[tokens] == own[..., None]).any(-1)
    if earlier_siblings is None:
        return fits
    return fits & ~(fits[:, None, :] & earlier_siblings).any(-1)


def accept_within_bound(
    probs: torch.Tensor, drawn: torch.Tensor, children: torch.Tensor, table: torch.Tensor, relaxation: Relaxation
) -> torch.Tensor:
    """Mass-bounded verification, sampled once.

    The same law as trying the children one by one with acceptance s(x) and removing {x} and A(x) on rejection.

    Args:
        probs: target distribution, (batch, inner, vocab).
        drawn: int64, (batch, inner): y.
        children: int64, (batch, inner, m): drafted tokens, -1 where there is none.
        table: int64, (vocab, >= k): nearest codes.
        relaxation: additive, multiplicative or budget.

    Returns:
        int64, (batch, inner): rank of the accepted child, m for none.
    """
    num_ranks = children.shape[-1]
    accepted = torch.full_like(drawn, num_ranks)
    spent = torch.zeros_like(probs[..., 0])
    for rank in range(num_ranks):
        is_drafted = children[..., rank] >= 0
        token = children[..., rank].clamp(min=0)
        relaxed = relaxed_set(probs, token, table, relaxation, spent)
        fits = (token == drawn) | ((relaxed.codes == drawn[..., None]) & relaxed.is_member).any(-1)
        accepted = torch.where(fits & is_drafted & (accepted == num_ranks), rank, accepted)
        if rank + 1 < num_ranks:
            reduced = remove_relaxed_set(probs, token, relaxed)
            if relaxation.renormalises:
                reduced = reduced / reduced.sum(-1, keepdim=True).clamp(min=torch.finfo(probs.dtype).tiny)
            probs = torch.where(is_drafted[..., None], reduced, probs)
            spent = spent + relaxed.mass * is_drafted
    return accepted


def remove_relaxed_set(probs: torch.Tensor, token: torch.Tensor, relaxed: RelaxedSet) -> torch.Tensor:
    """Sets the mass of {x} and A(x) to 0; (..., vocab)."""
    kept = probs.gather(-1, relaxed.codes) * ~relaxed.is_member
    return probs.scatter(-1, relaxed.codes, kept).scatter(-1, token[..., None], 0.0)


def accept_greedy(
    raw_logits: torch.Tensor, tokens: torch.Tensor, parents: torch.Tensor, table: torch.Tensor, relaxation: Relaxation
) -> torch.Tensor:
    """Relaxed verification at temperature 0: x is accepted if s(x) makes it the most probable token.

    s(x) is taken from the softmax of the raw guided logits (temperature and filters ignored), as the authors' code
    does; ties go to the lower code. Whether A(x) keeps its mass makes no difference: if it holds the top token, s(x)
    exceeds it anyway.

    Args:
        raw_logits: guided, unfiltered logits, (batch, nodes, vocab).
        tokens: int64, (batch, nodes).
        parents: int64, (batch or 1, nodes).
        table: int64, (vocab, >= k): nearest codes.
        relaxation: additive, multiplicative or budget.

    Returns:
        bool, (batch, nodes): accepted by its parent; several children of one node may be.

    Source: jadohu/LANTERN models/kv_variants/utils.py (evaluate_posterior, greedy branch).
    """
    index = parents.expand(tokens.shape)
    probs = raw_logits.softmax(-1)
    top_probs, top = probs.max(-1)
    top_probs, top = top_probs.gather(1, index), top.gather(1, index)  # of each node's parent
    probs = probs.gather(1, index[..., None].expand_as(probs))
    relaxed = relaxed_set(probs, tokens, table, relaxation, torch.zeros_like(top_probs))
    surrogate = probs.gather(-1, tokens[..., None]).squeeze(-1) + relaxed.mass
    return (tokens == top) | (surrogate > top_probs) | ((surrogate == top_probs) & (tokens < top))


@dataclass(frozen=True)
class RejectionRule:
    """What a rejection test adds to x, and what it leaves behind.

    Args:
        relaxation: None for exact decoding, else additive or multiplicative.
        table: int64, (vocab, > k): nearest codes; one column more than k for the official residual.
        residual: "paper": t becomes normalise(max(0, t~ - p)), t~ being t with A(x)'s mass moved onto x. "official" and
            "official_lumina": what the authors' code does for LlamaGen and for Lumina-mGPT; see `_official`.
    """

    relaxation: Relaxation | None = None
    table: torch.Tensor | None = None
    residual: str = "paper"

    def relax(self, probs: torch.Tensor, token: torch.Tensor) -> RelaxedSet:
        """A(x) of one draft per node."""
        if self.relaxation is None:
            empty = torch.zeros(*token.shape, 0, dtype=torch.int64, device=token.device)
            return RelaxedSet(empty, empty.bool(), torch.zeros_like(probs[..., 0]))
        return relaxed_set(probs, token, self.table, self.relaxation, torch.zeros_like(probs[..., 0]))

    def residual_probs(
        self, probs: torch.Tensor, token: torch.Tensor, relaxed: RelaxedSet, draft_probs: torch.Tensor | None
    ) -> torch.Tensor:
        """Distribution after x was rejected; all arguments per node, (..., vocab) or (...)."""
        if self.residual != "paper" and self.relaxation is not None:
            return self._official(probs, token, relaxed, draft_probs)
        moved = remove_relaxed_set(probs, token, relaxed)
        if draft_probs is None:
            left = moved
        else:
            moved = moved.scatter(-1, token[..., None], (_at(probs, token) + relaxed.mass)[..., None])
            left = (moved - draft_probs).clamp(min=0)
        total = left.sum(-1, keepdim=True)
        # Nothing left means that the rejection had probability 0: rounding. Stay inside the filtered support.
        return torch.where(total > 0, left / total.clamp(min=torch.finfo(probs.dtype).tiny), probs)

    def _official(
        self, probs: torch.Tensor, token: torch.Tensor, relaxed: RelaxedSet, draft_probs: torch.Tensor | None
    ) -> torch.Tensor:
        """The authors' residual (needed to reproduce their numbers).

        It differs from the paper's: if any prefix of neighbours qualified, the first k + 1 neighbours are zeroed,
        merged or
        not: in t for deterministic drafts and for Lumina-mGPT, but in p for LlamaGen's sampled drafts; and no mass left
        becomes uniform over all codes.

        Source: jadohu/LANTERN models/kv_variants/utils.py (evaluate_posterior, evaluate_posterior_v1).
        """
        wide = self.table[:, : self.relaxation.k + 1][token]
        is_merged = relaxed.is_member.any(-1, keepdim=True)
        if draft_probs is not None and self.residual == "official":
            draft_probs = draft_probs.scatter(-1, wide, torch.where(is_merged, 0.0, draft_probs.gather(-1, wide)))
        else:
            probs = probs.scatter(-1, wide, torch.where(is_merged, 0.0, probs.gather(-1, wide)))
        left = probs.scatter(-1, token[..., None], 0.0) if draft_probs is None else (probs - draft_probs).clamp(min=0)
        total = left.sum(-1, keepdim=True)
        uniform = torch.full_like(left, 1 / left.shape[-1])
        return torch.where(total > 0, left / total.clamp(min=torch.finfo(probs.dtype).tiny), uniform)


@dataclass
class Rejection:
    """Outcome of verification by rejection.

    Attributes:
        rank: int64, (batch, inner): rank of the accepted child, m for none.
        residual: (batch, inner, vocab): distribution of the emitted token where no child is accepted.
    """

    rank: torch.Tensor
    residual: torch.Tensor


def accept_by_rejection(
    probs: torch.Tensor,
    children: torch.Tensor,
    draft_probs: torch.Tensor | None,
    uniforms: torch.Tensor,
    rule: RejectionRule,
) -> Rejection:
    """Tries the children of every node in order: accept x with probability s(x) / p_i(x), else go on with the residual.

    Args:
        probs: target distribution, (batch, inner, vocab).
        children: int64, (batch, inner, m): drafted tokens, -1 where there is none.
        draft_probs: distribution that the children were drawn from without replacement, (batch, inner, vocab); None for
            deterministic drafts, whose p_i is a point mass.
        uniforms: (batch, inner, m), in (0, 1): noise of the decisions.
        rule: relaxation and residual.

    Returns:
        See `Rejection`. Without relaxation the emitted law is the target's.

    Source: Leviathan et al. 2023 (arXiv 2211.17192); siblings: Miao et al. 2024 (arXiv 2305.09781).
    """
    num_ranks = children.shape[-1]
    rank = torch.full_like(children[..., 0], num_ranks)
    for i in range(num_ranks):
        token = children[..., i].clamp(min=0)
        token_draft = torch.ones_like(probs[..., 0]) if draft_probs is None else _at(draft_probs, token)
        # A token drawn although its probability is 0 (fewer survivors of the filters than children) is no draft.
        is_tried = (children[..., i] >= 0) & (rank == num_ranks) & (token_draft > 0)
        relaxed = rule.relax(probs, token)
        surrogate = _at(probs, token) + relaxed.mass
        is_accepted = is_tried & (uniforms[..., i] * token_draft <= surrogate) & (surrogate > 0)
        rank = torch.where(is_accepted, i, rank)
        residual = rule.residual_probs(probs, token, relaxed, draft_probs)
        probs = torch.where((is_tried & ~is_accepted)[..., None], residual, probs)
        if draft_probs is not None:
            remaining = draft_probs.scatter(-1, token[..., None], 0.0)
            remaining = remaining / remaining.sum(-1, keepdim=True).clamp(min=torch.finfo(probs.dtype).tiny)
            draft_probs = torch.where((children[..., i] >= 0)[..., None], remaining, draft_probs)
    return Rejection(rank, probs)


def _at(values: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
    return values.gather(-1, token[..., None]).squeeze(-1)
