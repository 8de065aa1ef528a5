"""Verification: which drafted tokens are accepted, and what is emitted where the drafts end.

Two ways to verify. *Sampled once* (top and coupled drafts): the target's own token y is drawn at every node of the
tree, and a node accepts its first child whose relaxed set {x} and A(x) holds y. *By rejection* (sampled drafts):
children are accepted one after the other with probability s(x) / p(x), a rejection leaves the residual distribution.
Both work on any number of nodes at once, on fixed shapes and without host synchronisation. A relaxation says how large
A(x) may grow.

Shapes: inner = nodes that may have children, m = most children of one node.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from lantern.methods import OFFICIAL_RESIDUALS
from lantern.peer_relaxations import ProbabilityGroup
from lantern.relaxation import Relaxation, RelaxedSet, grow_set, walk_children, with_nearest

MASSES_AT_ONCE = 2**22  # nearest codes' masses of all codes held at once; 32 MiB of their numbers


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
        table: (vocab, >= k): nearest codes, whole numbers.
        relaxation: one that bounds the mass of A(x).

    Returns:
        int64, (batch, inner): rank of the accepted child, m for none.
    """
    left = [mass.gather(-1, drawn[..., None]) for *_, mass in walk_children(probs, children, table, relaxation)]
    return (torch.cat(left, dim=-1) > 0).sum(-1) if left else torch.zeros_like(drawn)  # the first leaves y no mass


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
        table: (vocab, >= k): nearest codes, whole numbers.
        relaxation: one that bounds the mass of A(x).

    Returns:
        bool, (batch, nodes): accepted by its parent; several children of one node may be.

    Source: jadohu/LANTERN models/kv_variants/utils.py (evaluate_posterior, greedy branch).
    """
    index = parents.expand(tokens.shape)
    probs = raw_logits.softmax(-1)
    top_probs, top = probs.max(-1)
    top_probs, top = top_probs.gather(1, index), top.gather(1, index)  # of each node's parent
    codes = with_nearest(table, tokens.clamp(min=0), relaxation.k)
    # Of each node's parent at these codes, without a copy of the parent's row per node.
    masses = probs.flatten(1).gather(1, (index[..., None] * probs.shape[-1] + codes).flatten(1)).view(codes.shape)
    surrogate = grow_set(codes, masses, relaxation).surrogate.squeeze(-1)
    fits = (tokens == top) | (surrogate > top_probs) | ((surrogate == top_probs) & (tokens < top))
    return fits & (tokens >= 0)


@dataclass(frozen=True)
class RejectionRule:
    """What a rejection test adds to x, and what it leaves behind.

    Args:
        relaxation: of A(x), or groups of codes; None for exact decoding.
        table: (vocab, > k): nearest codes, whole numbers; one column more than k for the official residual. Of groups
            bool, (vocab, vocab): which codes are near each other.
        residual: "paper": t becomes normalise(max(0, t~ - p)), t~ being t with A(x)'s mass moved onto x. "official" and
            "official_lumina": what the authors' code does for LlamaGen and for Lumina-mGPT; see `_official`. "matched":
            t becomes normalise(max(0, t - p f)), f(x) being the probability with which x is accepted: the least total
            variation from t that f allows, and one residual for all x.
        weight: by which s(x) is multiplied in the test, one number or (inner, 1); for residual "matched" alone.

    Source: for the matched residual and the weights, COOL-SD (arXiv 2601.09212).
    """

    relaxation: Relaxation | ProbabilityGroup | None = None
    table: torch.Tensor | None = None
    residual: str = "paper"
    weight: torch.Tensor | float = 1.0

    @property
    def has_one_residual(self) -> bool:
        """Whether the residual of sampled drafts is the same whichever was rejected."""
        return self.residual == "matched" or not isinstance(self.relaxation, Relaxation)

    def codes_of(self, tokens: torch.Tensor) -> torch.Tensor:
        """The drafts' nearest codes and the drafts, int64 (..., k + 1), see `with_nearest`; without A(x) the drafts."""
        if not isinstance(self.relaxation, Relaxation):
            return tokens[..., None]
        return with_nearest(self.table, tokens, self.relaxation.k)

    def relax(self, probs: torch.Tensor, codes: torch.Tensor, draft_probs: torch.Tensor | None = None) -> RelaxedSet:
        """A(x) of one draft per node, from what `codes_of` gives; groups need draft_probs, (..., vocab)."""
        if isinstance(self.relaxation, Relaxation):
            return grow_set(codes, probs.gather(-1, codes), self.relaxation)
        if self.relaxation is None:
            offered = probs.gather(-1, codes)
        else:
            offered = self.relaxation.surrogate(probs, draft_probs, codes, self.table)
        return RelaxedSet(codes[..., :0], codes[..., :0] > 0, probs[..., :0], offered, codes)

    def accepted_mass(self, probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
        """p(x) f(x) of every code x, (..., vocab): the probability that x is drafted and accepted. With a relaxation it
        reads k + 1 masses a code, vocab (k + 1) a node.

        Args:
            probs: target distribution, (..., vocab).
            draft_probs: what x is drawn from, (..., vocab).
        """
        return torch.minimum(draft_probs, self.weight * self._surrogates(probs, draft_probs))

    def _surrogates(self, probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
        """s(x) of every code x, (..., vocab)."""
        if self.relaxation is None:
            return probs
        if isinstance(self.relaxation, ProbabilityGroup):
            tokens = torch.arange(probs.shape[-1], device=probs.device).expand_as(probs)
            return self.relaxation.surrogate(probs, draft_probs, tokens, self.table)
        rows, parts = probs.reshape(-1, probs.shape[-1]), []
        codes_at_once = max(1, MASSES_AT_ONCE // (len(rows) * (self.relaxation.k + 1)))
        for tokens in torch.arange(probs.shape[-1], device=probs.device).split(codes_at_once):
            codes = self.codes_of(tokens)
            masses = rows.index_select(1, codes.flatten()).view(-1, *codes.shape)
            parts.append(grow_set(codes, masses, self.relaxation).surrogate.squeeze(-1))
        return torch.cat(parts, dim=-1).view_as(probs)

    def residual_probs(
        self,
        probs: torch.Tensor,
        relaxed: RelaxedSet | None,
        draft_probs: torch.Tensor | None,
        is_tried: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Distribution after x was rejected; `probs` where it was not even tried.

        Args:
            probs: target distribution, (..., vocab).
            relaxed: of x; not read where `has_one_residual` and drafts are sampled.
            draft_probs: what x was drawn from, (..., vocab); None for a deterministic draft.
            is_tried: bool, (..., 1); None is everywhere.
        """
        is_tried = torch.ones_like(probs[..., :1], dtype=torch.bool) if is_tried is None else is_tried
        if self.residual in OFFICIAL_RESIDUALS and self.relaxation is not None:
            return torch.where(is_tried, self._official(probs, relaxed, draft_probs), probs)
        if draft_probs is None:
            left = probs.scatter(-1, relaxed.taken, 0.0)
        elif self.residual == "matched":
            left = (probs - self.accepted_mass(probs, draft_probs)).clamp_(min=0)
        elif not isinstance(self.relaxation, Relaxation):
            left = (probs - draft_probs).clamp_(min=0)
        else:
            moved = probs.scatter(-1, relaxed.taken, 0.0)
            moved.scatter_(-1, relaxed.taken[..., -1:], relaxed.surrogate)
            left = moved.sub_(draft_probs).clamp_(min=0)
        total = left.sum(-1, keepdim=True)
        # Nothing left means that the rejection had probability 0: rounding. Stay inside the filtered support.
        return torch.where((total > 0) & is_tried, left.div_(total), probs)

    def _official(self, probs: torch.Tensor, relaxed: RelaxedSet, draft_probs: torch.Tensor | None) -> torch.Tensor:
        """The authors' residual (needed to reproduce their numbers).

        It differs from the paper's: if any prefix of neighbours qualified, the first k + 1 neighbours are zeroed,
        merged or not: in t for deterministic drafts and for Lumina-mGPT, but in p for LlamaGen's sampled drafts; and no
        mass left becomes uniform over all codes.

        Source: jadohu/LANTERN models/kv_variants/utils.py (evaluate_posterior, evaluate_posterior_v1).
        """
        token = relaxed.taken[..., -1]
        wide = with_nearest(self.table, token, self.relaxation.k + 1)[..., :-1]
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
        fits: bool, (batch, inner, m): whether a child is accepted where those before it are not.
        residual: (batch, inner, vocab): distribution of the emitted token where no child is accepted; elsewhere it has
            no meaning.
    """

    rank: torch.Tensor
    fits: torch.Tensor
    residual: torch.Tensor


def accept_by_rejection(
    probs: torch.Tensor,
    children: torch.Tensor,
    draft_probs: torch.Tensor | None,
    uniforms: torch.Tensor,
    rule: RejectionRule,
) -> Rejection:
    """Tries the children of every node in order: accept x with probability w s(x) / p_i(x), else go on with the
    residual; w is the rule's weight, 1 unless it has others.

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
    tokens, is_drafted = children.clamp(min=0), children >= 0
    is_missing, surrogates, token_drafts = (~is_drafted).split(1, dim=-1), [], []
    draft_probs = None if draft_probs is None else draft_probs.clone()
    for rank, codes in enumerate(rule.codes_of(tokens).unbind(-2)):
        relaxed = rule.relax(probs, codes, draft_probs)
        surrogates.append(relaxed.surrogate)
        # As if x were rejected: where it is not, nothing of this is read.
        if draft_probs is None:
            probs = rule.residual_probs(probs, relaxed, None, ~is_missing[rank])
            continue
        token = relaxed.taken[..., -1:]
        token_drafts.append(draft_probs.gather(-1, token))
        probs = rule.residual_probs(probs, relaxed, draft_probs, (token_drafts[-1] > 0) & ~is_missing[rank])
        draft_probs.scatter_(-1, token, token_drafts[-1] * is_missing[rank])
        draft_probs /= draft_probs.sum(-1, keepdim=True)  # 0 / 0 where all is drawn: nan is not > 0 either
    if not surrogates:
        return Rejection(children.sum(-1), is_drafted, probs)
    surrogate = rule.weight * torch.cat(surrogates, dim=-1)
    token_draft = torch.cat(token_drafts, dim=-1) if token_drafts else torch.ones_like(surrogate)
    # A token drawn although its probability is 0 (fewer survivors of the filters than children) is no draft.
    fits = is_drafted & (token_draft > 0) & (uniforms * token_draft <= surrogate) & (surrogate > 0)
    return Rejection(F.pad(fits, (0, 1), value=True).byte().argmax(-1), fits, probs)
