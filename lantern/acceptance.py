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

import torch

from lantern.relaxation import Relaxation, RelaxedSet, relaxed_set, remove_relaxed_set, walk_children


def accept_look_alikes(drawn: torch.Tensor, children: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Proximity verification: the child equal to y, or else the first child x of which y is one of the k nearest codes.

    Args:
        drawn: int64, (..., n): y of each node.
        children: int64, (..., n, m): drafted tokens, -1 where there is none.
        table: (vocab, k): nearest codes, whole numbers.

    Returns:
        int64, (..., n): rank of the accepted child, m for none.
    """
    drawn = drawn[..., None]
    is_near = (table[children.clamp(min=0)] == drawn[..., None].to(table.dtype)).any(-1) & (children >= 0)
    fits = torch.cat([2 * (children == drawn) + is_near, torch.ones_like(drawn)], dim=-1)
    return fits.argmax(-1)


def accept_within_bound(
    probs: torch.Tensor, drawn: torch.Tensor, children: torch.Tensor, table: torch.Tensor, relaxation: Relaxation
) -> torch.Tensor:
    """Mass-bounded verification, sampled once.

    As trying the children one by one with acceptance s(x), removing {x} and A(x) on rejection: the output distribution
    is the same.

    Args:
        probs: target distribution, (batch, inner, vocab).
        drawn: int64, (batch, inner): y.
        children: int64, (batch, inner, m): drafted tokens, -1 where there is none.
        table: int64, (vocab, >= k): nearest codes.
        relaxation: one that bounds the mass of A(x).

    Returns:
        int64, (batch, inner): rank of the accepted child, m for none.
    """
    num_ranks = children.shape[-1]
    accepted = torch.full_like(drawn, num_ranks)
    for rank, (token, is_drafted, relaxed) in enumerate(walk_children(probs, children, table, relaxation)):
        fits = (token == drawn) | ((relaxed.codes == drawn[..., None]) & relaxed.is_member).any(-1)
        accepted = torch.where(fits & is_drafted & (accepted == num_ranks), rank, accepted)
    return accepted


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
        relaxation: one that bounds the mass of A(x).

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
        merged or not: in t for deterministic drafts and for Lumina-mGPT, but in p for LlamaGen's sampled drafts; and no
        mass left becomes uniform over all codes.

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
        See `Rejection`. Without relaxation the output distribution is the target's.

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
