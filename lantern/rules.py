"""Rules of verification: how a method decides which drafts are accepted and what is emitted behind them.

A rule judges nodes, each by itself: which token its children are accepted for, and what is emitted where none is. All
nodes are judged at once; or, on a CPU and a tree with many more nodes than levels, those of the path alone that is
taken, one level after the other, so that filters, noise and relaxed sets are worked out for few rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F

from lantern import acceptance
from lantern.draft_tree import StaticTree
from lantern.drafting import Proposal
from lantern.methods import OFFICIAL_RESIDUALS, MethodSpec, verifies_by_rejection
from lantern.noise import NoiseField
from lantern.peer_relaxations import DraftWeights, PeerRelaxation
from lantern.relaxation import Relaxation, make_relaxation
from lantern.sampling import SamplingConfig
from lantern.verification import (
    Outcome,
    Scores,
    child_tokens,
    first_leaf,
    inner_places,
    longest_path,
    of_all_nodes,
    pick_rows,
)

MANY_LOGITS = 2**16  # of a step on a CPU: with more, the nodes of the path alone are judged
NO_TOKEN = -2  # chosen where no child is accepted; a missing draft is -1


@dataclass
class Choice:
    """What a rule makes of some nodes.

    Attributes:
        chosen: int64, (batch, n): children with this token are accepted.
        own: int64, (batch, n): the token emitted where no child is.
        best: (batch, n): the largest of the numbers by which `own` was found; not finite where the logits are not.
    """

    chosen: torch.Tensor
    own: torch.Tensor
    best: torch.Tensor


class Rule:
    """What all rules share: the way through the tree.

    Siblings that carry the same token are accepted together; the longest path wins.

    Attributes:
        noise_streams: what is read of the noise besides the target's own, at temperatures above 0.
        draws_target_tokens: whether the target draws a token of its own at every node, so that a substitution is
            defined.
        judges_by_node: whether a node can be judged without those beside it.
        follows_path: whether nodes of the path alone may be judged.
        takes_first_leaf: whether the first leaf decides between paths of one length, not the first node.
    """

    noise_streams: ClassVar[tuple[str, ...]] = ()
    draws_target_tokens: ClassVar[bool] = True
    judges_by_node: ClassVar[bool] = True
    follows_path: bool = False
    takes_first_leaf: bool = False

    def verify(self, scores: Scores, proposal: Proposal) -> Outcome:
        """Finds the path that is taken and the tokens that are emitted.

        Args:
            scores: the target's view of all nodes.
            proposal: the filled tree.
        """
        tree = proposal.tree
        if tree.max_depth == 0:
            best, own = scores.keys.max(-1)
            no, nodes = torch.zeros_like(own, dtype=torch.bool), torch.arange(own.shape[1], device=own.device)
            count = own.new_ones(len(own)) if proposal.cells is None else proposal.cells.counts
            finite = best.isfinite().all(1)
            return Outcome(proposal, scores, no, nodes.expand_as(own), count - 1, own, no, finite)
        # On a GPU a few wide operations take less time than many narrow ones.
        is_costly = scores.logits.device.type == "cpu" and scores.logits.numel() > MANY_LOGITS
        if self.follows_path and is_costly and tree.num_nodes > 2 * (tree.max_depth + 1):
            return self._judge_path(scores, proposal)
        is_accepted, own, best = self.judge_all(scores, proposal)
        order = first_leaf(tree) if self.takes_first_leaf else None
        path, num_accepted = longest_path(tree, is_accepted, order)
        own = own.gather(1, path)
        drafted = F.pad(proposal.tokens.gather(1, path[:, 1:]), (0, 1))
        steps = torch.arange(path.shape[1], device=path.device)
        emitted = torch.where(steps == num_accepted[:, None], own, drafted)
        is_substituted = emitted != own if self.draws_target_tokens else torch.zeros_like(emitted, dtype=torch.bool)
        is_finite = best.gather(1, path[:, -1:])[:, 0].isfinite()
        return Outcome(proposal, scores, is_accepted, path, num_accepted, emitted, is_substituted, is_finite)

    def judge_all(self, scores: Scores, proposal: Proposal) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Judges all nodes at once.

        Returns:
            (accepted by its parent, bool (batch, nodes); own and best of `Choice`).
        """
        tree = proposal.tree
        choice = self.judge(scores, of_all_nodes(child_tokens(proposal), tree, -1), proposal.draft_probs)
        chosen = choice.chosen.gather(1, tree.parents.expand(proposal.tokens.shape))
        return chosen == proposal.tokens, choice.own, choice.best

    def _judge_path(self, scores: Scores, proposal: Proposal) -> Outcome:
        """Judges the root, then the child that it accepts, and so on; no two siblings carry the same token here."""
        tree, tokens, drawn_from = proposal.tree, proposal.tokens, proposal.draft_probs
        children = of_all_nodes(tree.children, tree, 0).expand(len(tokens), -1, -1)
        drafts = of_all_nodes(child_tokens(proposal), tree, -1)  # (batch, nodes, m)
        places = None if drawn_from is None else inner_places(tree)[0]
        widths = tree.level_children if isinstance(tree, StaticTree) else tree.max_depth * [children.shape[-1]]
        node, is_reached = torch.zeros_like(tokens[:, :1]), torch.ones_like(tokens[:, :1], dtype=torch.bool)
        path, emitted, is_substituted, num_accepted = [node], [], [], torch.zeros_like(node)
        own, best = node, scores.logits[:, :1, 0]
        for width in [*widths, 0]:
            drafted = pick_rows(drafts, node)[..., :width]  # (batch, 1, width)
            draft_probs = None if drawn_from is None else pick_rows(drawn_from, places[node])
            choice = self.judge(scores.at(node), drafted, draft_probs)
            own, best = torch.where(is_reached, choice.own, own), torch.where(is_reached, choice.best, best)
            if width == 0:
                break
            is_fit, rank = (drafted == choice.chosen[..., None]).max(dim=-1)
            is_reached = is_reached & is_fit
            child = pick_rows(children, node)[:, 0].gather(1, rank)
            node, num_accepted = torch.where(is_reached, child, node), num_accepted + is_reached
            path.append(node)
            emitted.append(torch.where(is_reached, choice.chosen, own))
            is_substituted.append(emitted[-1] != own)
        path, emitted = torch.cat(path, dim=1), torch.cat([*emitted, own], dim=1)
        return Outcome(
            proposal,
            scores,
            torch.zeros_like(tokens, dtype=torch.bool).scatter(1, path, True),
            path,
            num_accepted[:, 0],
            emitted,
            torch.cat([*is_substituted, node != node], dim=1) & self.draws_target_tokens,
            best[:, 0].isfinite(),
        )

    def judge(self, scores: Scores, children: torch.Tensor, draft_probs: torch.Tensor | None) -> Choice:
        """Judges each of some nodes.

        Args:
            scores: of these nodes.
            children: int64, (batch, n, m): drafted tokens, -1 where there is none.
            draft_probs: (batch, n, vocab): what they were drawn from; None unless they were sampled.
        """
        raise NotImplementedError


class ByEquality(Rule):
    """Exact decoding, sampled once: a draft is accepted if it is the token that the target draws."""

    def judge_all(self, scores: Scores, proposal: Proposal) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The children need not be known."""
        best, own = scores.keys.max(-1)
        return own.gather(1, proposal.tree.parents.expand(own.shape)) == proposal.tokens, own, best

    def judge(self, scores: Scores, children: torch.Tensor, draft_probs: torch.Tensor | None) -> Choice:
        """The target's token, whatever was drafted."""
        best, own = scores.keys.max(-1)
        return Choice(own, own, best)


class ByLookAlike(Rule):
    """Ours, proximity: a draft is also accepted if the token that the target draws is one of its k nearest codes.

    A draft equal to that token is preferred to its look-alikes. What the target's filters took away is not accepted.

    Args:
        table: (vocab, k): nearest codes.
    """

    def __init__(self, table: torch.Tensor) -> None:
        self.table = table

    def judge(self, scores: Scores, children: torch.Tensor, draft_probs: torch.Tensor | None) -> Choice:
        """The target's token or its first look-alike."""
        best, own = scores.keys.max(-1)
        is_kept = scores.weights.gather(-1, children.clamp(min=0)) > -torch.inf
        rank = acceptance.accept_look_alikes(own, children.masked_fill(~is_kept, -1), self.table)
        return Choice(_token_of(rank, children, own), own, best)


class WithinBound(Rule):
    """Relaxed decoding of deterministic drafts, sampled once: a draft is accepted if the token that the target draws is
    in its relaxed set. The papers' bounds may accept what the target's filters took away, our budget does not.

    Args:
        relaxation: bounds the sets' mass.
        table: (vocab, k): nearest codes.
    """

    def __init__(self, relaxation: Relaxation, table: torch.Tensor) -> None:
        self.relaxation, self.table = relaxation, table

    def judge(self, scores: Scores, children: torch.Tensor, draft_probs: torch.Tensor | None) -> Choice:
        """The first draft whose set holds the target's token, or that token."""
        best, own = scores.keys.max(-1)
        probs = scores.weights.softmax(-1)
        if not self.follows_path:  # the twin of a draft of another kind must not widen its set
            is_twin = (children[..., :, None] == children[..., None, :]).tril(-1).any(-1)
            children = children.masked_fill(is_twin, -1)
        rank = acceptance.accept_within_bound(probs, own, children, self.table, self.relaxation)
        return Choice(_token_of(rank, children, own), own, best)


class GreedyWithinBound(Rule):
    """Relaxed decoding at temperature 0, as the authors' code does it; see `acceptance.accept_greedy`.

    Args:
        relaxation: bounds the sets' mass.
        table: (vocab, k): nearest codes.
        takes_first_leaf: as the authors' code does in dynamic trees.
    """

    def __init__(self, relaxation: Relaxation, table: torch.Tensor, takes_first_leaf: bool = False) -> None:
        self.relaxation, self.table, self.takes_first_leaf = relaxation, table, takes_first_leaf

    def judge_all(self, scores: Scores, proposal: Proposal) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Several children of one node may be accepted, whatever their tokens."""
        best, own = scores.logits.max(-1)
        parents = proposal.tree.parents
        accepted = acceptance.accept_greedy(scores.logits, proposal.tokens, parents, self.table, self.relaxation)
        return accepted, own, best


class ByRejection(Rule):
    """Children are accepted one after the other with probability s(x) / p(x), a rejection leaves the residual
    distribution; see `acceptance.accept_by_rejection`.

    Args:
        rejection: relaxation and residual.
    """

    noise_streams: ClassVar[tuple[str, ...]] = ("accept",)
    draws_target_tokens: ClassVar[bool] = False

    def __init__(self, rejection: acceptance.RejectionRule) -> None:
        self.rejection = rejection

    def rejection_at(self, depths: torch.Tensor) -> acceptance.RejectionRule:
        """The rejection at nodes of these depths, int64 (nodes,)."""
        weight = self.rejection.weight
        return self.rejection if isinstance(weight, float) else replace(self.rejection, weight=weight[depths])

    def judge_all(self, scores: Scores, proposal: Proposal) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tries nothing at nodes that have no children."""
        tree, inner = proposal.tree, proposal.tree.parent_nodes
        if inner is None:
            return super().judge_all(scores, proposal)
        weights, positions = scores.weights.index_select(1, inner), scores.positions.index_select(1, inner)
        choice = self._try(weights, positions, scores.noise, child_tokens(proposal), proposal.draft_probs)
        best, own = scores.keys.max(-1)
        own, best = own.index_copy(1, inner, choice.own), best.index_copy(1, inner, choice.best)
        chosen = of_all_nodes(choice.chosen, tree, NO_TOKEN).gather(1, tree.parents.expand(own.shape))
        return chosen == proposal.tokens, own, best

    def judge(self, scores: Scores, children: torch.Tensor, draft_probs: torch.Tensor | None) -> Choice:
        """The first accepted draft, or a token of the residual."""
        return self._try(scores.weights, scores.positions, scores.noise, children, draft_probs)

    def _try(
        self,
        weights: torch.Tensor,
        positions: torch.Tensor,
        noise: NoiseField,
        children: torch.Tensor,
        draft_probs: torch.Tensor | None,
    ) -> Choice:
        uniforms = noise.uniform(positions, children.shape[-1])
        found = acceptance.accept_by_rejection(weights.softmax(-1), children, draft_probs, uniforms, self.rejection)
        best, own = found.residual.log_().add_(noise.gumbel("target", positions)).max(-1)
        return Choice(_token_of(found.rank, children, torch.full_like(own, NO_TOKEN)), own, best)


class LongestPath(ByRejection):
    """All nodes are judged, each as if its earlier siblings were rejected and by a number of its own; the longest path
    is taken, the first of several. Behind the last place of the window a code is emitted at random.

    Not exact, without a known bound on TV: a sibling that is followed well beats an earlier one that is accepted, too,
    and the random code has nothing to do with the target.

    Source: KangJialiang/SJD-PAC@4fbc099 (arXiv 2603.18599).
    """

    judges_by_node: ClassVar[bool] = False

    def judge_all(self, scores: Scores, proposal: Proposal) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Cousins are at one position of the noise, and read different slots there."""
        tree, inner, children = proposal.tree, proposal.tree.parent_nodes, child_tokens(proposal)
        positions, most = scores.positions.index_select(1, inner), children.shape[2]
        cousins = torch.cat([torch.arange(len(level), device=inner.device) for level in tree.levels])
        slots = cousins[:, None] * most + torch.arange(most, device=inner.device)
        uniforms = scores.noise.uniform(positions, most * max(map(len, tree.levels)))
        uniforms = uniforms.gather(2, slots.expand_as(children))
        probs = scores.weights.index_select(1, inner).softmax(-1)
        found = acceptance.accept_by_rejection(probs, children, proposal.draft_probs, uniforms, self.rejection)
        child_places = inner_places(tree).gather(1, tree.parents) * most + tree.ranks
        accepted = found.fits.flatten(1).gather(1, child_places.expand(len(children), -1))
        noise = scores.noise.gumbel("target", scores.positions)
        left_best, left_own = (found.residual.log_() + noise.index_select(1, inner)).max(-1)
        best, own = torch.where((tree.depths == tree.max_depth)[..., None], noise, scores.keys).max(-1)
        return accepted, own.index_copy(1, inner, left_own), best.index_copy(1, inner, left_best)


class LongestChain(ByRejection):
    """Every chain is judged by itself, and the longest is taken, the first of several.

    Draft x of a chain is accepted with probability min(1, (t(x) + m) / p(x)): m is `delta` times the mean of what t
    gives to the tokens that the other chains hold at that place. A rejection leaves normalise(max(0, t - p)).

    Not exact: TV of whole images grows with the number of chains and with delta, without a known bound.

    Args:
        delta: share of the other chains' mass that is lent to a draft.

    Source: PathRelax (arXiv 2606.10492; Haodong-Lei-Ray/PathSpec@8a3df48).
    """

    judges_by_node: ClassVar[bool] = False

    def __init__(self, delta: float) -> None:
        super().__init__(acceptance.RejectionRule())
        self.delta = delta

    def judge_all(self, scores: Scores, proposal: Proposal) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Accepted, and the tokens behind; behind the root, that of the first chain's rejection."""
        tree, tokens, labels = proposal.tree, proposal.tokens, proposal.draft_probs
        batch, window = len(tokens), tree.max_depth
        num_chains = (tree.num_nodes - 1) // window
        probs = scores.weights.softmax(-1).index_select(1, tree.parents[0, 1:])  # (batch, drafts, vocab)
        drafts = tokens[:, 1:].view(batch, window, num_chains)
        beside = drafts[:, :, None].expand(-1, -1, num_chains, -1).reshape(batch, -1, num_chains)
        masses = probs.gather(2, beside).view(batch, window, num_chains, num_chains)
        own = masses.diagonal(dim1=2, dim2=3)
        lent = (masses.sum(3) - own) * (self.delta / max(1, num_chains - 1))
        uniforms = scores.noise.uniform(scores.positions.index_select(1, tree.parents[0, 1::num_chains]), num_chains)
        token_draft = labels.gather(2, tokens[:, 1:, None]).view_as(drafts)
        fits = (uniforms * token_draft <= own + lent) & (token_draft > 0)
        accepted = torch.cat([tokens[:, :1] < 0, fits.flatten(1)], dim=1)
        first = tree.children[0, :, 0] - 1  # of each inner node's children, among the drafts
        left = self.rejection.residual_probs(probs.index_select(1, first), None, labels.index_select(1, first))
        noise = scores.noise.gumbel("target", scores.positions.index_select(1, tree.parent_nodes))
        left_best, left_own = (left.log_() + noise).max(-1)
        best, emitted = scores.keys.max(-1)
        inner = tree.parent_nodes
        return accepted, emitted.index_copy(1, inner, left_own), best.index_copy(1, inner, left_best)


def _token_of(rank: torch.Tensor, children: torch.Tensor, otherwise: torch.Tensor) -> torch.Tensor:
    """Token of the child of this rank, or `otherwise`, like rank, where the rank is that of no child."""
    return torch.cat([children, otherwise[..., None]], dim=-1).gather(-1, rank[..., None]).squeeze(-1)


def make_rule(
    spec: MethodSpec,
    sampling: SamplingConfig,
    nearest_codes: torch.Tensor | None,
    embedding: torch.Tensor | None = None,
) -> Rule:
    """The rule of a method.

    Args:
        spec: the method.
        sampling: the temperature decides between the greedy and the sampled rules.
        nearest_codes: (vocab, columns), whole numbers; None where the relaxation takes none.
        embedding: the target's of its codes, (vocab, dim); None where the method does not measure distances in it.

    Raises:
        ValueError: the table is missing or too narrow, or the embedding is missing.
    """
    relaxation = make_relaxation(spec)
    rejects = not sampling.is_greedy and spec.drafts is not None and verifies_by_rejection(spec.to_dict())
    if isinstance(relaxation, PeerRelaxation) and not rejects:
        relaxation = None  # there is no test of rejection that it could change
    table = _checked_table(spec, nearest_codes, rejects) if isinstance(relaxation, Relaxation) else None
    if isinstance(relaxation, PeerRelaxation):
        rule = ByRejection(_rejection_of_peer(spec, relaxation, embedding))
    elif rejects and spec.relaxation == "longest_chain":
        rule = LongestChain(spec.delta)
    elif rejects and spec.relaxation == "public_tree":
        rule = LongestPath(acceptance.RejectionRule())
    elif rejects:
        rule = ByRejection(acceptance.RejectionRule(relaxation, table, spec.residual))
    elif relaxation is None:
        rule = ByEquality()
    elif not relaxation.bounds_mass:
        rule = ByLookAlike(table)
    elif sampling.is_greedy:
        return GreedyWithinBound(relaxation, table, spec.residual != "paper" and spec.tree == "dynamic")
    else:
        rule = WithinBound(relaxation, table)
    rule.follows_path = rule.judges_by_node and not (sampling.is_greedy or spec.drafts in ("jacobi", "hybrid"))
    return rule


def _rejection_of_peer(
    spec: MethodSpec, relaxation: PeerRelaxation, embedding: torch.Tensor | None
) -> acceptance.RejectionRule:
    if isinstance(relaxation, DraftWeights):
        device = None if embedding is None else embedding.device
        weight = torch.tensor(relaxation.weights(len(spec.tree_shape)), device=device)[:, None]
        return acceptance.RejectionRule(residual=spec.residual, weight=weight)
    if embedding is None:
        raise ValueError(f"method {spec.method_id or spec.name} needs the target's token embedding, got none")
    return acceptance.RejectionRule(relaxation, relaxation.near_codes(embedding), spec.residual)


def _checked_table(spec: MethodSpec, nearest_codes: torch.Tensor | None, rejects: bool) -> torch.Tensor:
    """The columns that the method reads."""
    # The authors' residuals reach one code further.
    columns = spec.k + (rejects and spec.residual in OFFICIAL_RESIDUALS)
    if nearest_codes is None or nearest_codes.shape[1] < columns:
        found = "no table" if nearest_codes is None else f"a table of {nearest_codes.shape[1]} columns"
        raise ValueError(f"method {spec.method_id or spec.name} needs the {columns} nearest codes, got {found}")
    return nearest_codes[:, :columns].contiguous()
