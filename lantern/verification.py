"""Verification of a filled tree: which nodes are accepted, by the parts that a method is made of, and which path is
taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lantern import acceptance
from lantern.draft_tree import DraftTree
from lantern.drafting import Drafts
from lantern.methods import MethodSpec, draws_target_tokens
from lantern.noise import NoiseField
from lantern.relaxation import make_relaxation
from lantern.sampling import SamplingConfig


def longest_path(
    tree: DraftTree, is_accepted: torch.Tensor, order: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The deepest node whose whole path from the root is accepted; the first of them where there are several.

    Args:
        tree: structure.
        is_accepted: bool, (batch, nodes): accepted by its parent; the root's entry is ignored.
        order: int64, (batch or 1, nodes), in [0, nodes): which of several deepest nodes is first; by default node
            numbers.

    Returns:
        (path, int64 (batch, max_depth + 1), padded with its last node; number of accepted drafts, int64 (batch,)).
    """
    reached = tree.depths.masked_fill(~reached_nodes(tree, is_accepted), -1)
    if order is None:
        counts, best = reached.max(dim=1)
    else:
        best = (reached * tree.num_nodes - order).argmax(dim=1)
        counts = reached.gather(1, best[:, None]).squeeze(1)
    index = best[:, None, None].expand(-1, 1, tree.paths.shape[2])
    paths = tree.paths.expand(len(best), -1, -1)
    return paths.gather(1, index).squeeze(1), counts


def reached_nodes(tree: DraftTree, is_accepted: torch.Tensor) -> torch.Tensor:
    """Nodes whose whole path from the root is accepted, themselves included: bool (batch, nodes).

    Args:
        tree: structure.
        is_accepted: bool, (batch, nodes): accepted by its parent; the root's entry is ignored.
    """
    is_cut = tree.ancestors[:, :, 1:] & ~is_accepted[:, None, 1:]  # (batch, node, ancestor)
    return ~is_cut.any(-1)


def first_leaf(tree: DraftTree) -> torch.Tensor:
    """Lowest-numbered leaf at or below each node, int64 (rows, nodes).

    The authors' code lists a dynamic tree's paths by leaf and takes the first of the longest; greedy relaxed decoding
    is where several are accepted.
    """
    is_leaf = ~(tree.children >= 0).any(-1)  # (rows, nodes)
    node = torch.arange(tree.num_nodes, device=is_leaf.device)
    below = tree.ancestors & is_leaf[:, :, None]  # (rows, leaf, node)
    return torch.where(below, node[None, :, None], tree.num_nodes - 1).amin(dim=1)


@dataclass
class Outcome:
    """What verification makes of a tree.

    Attributes:
        is_accepted: bool, (batch, nodes): accepted by its parent.
        path: int64, (batch, max_depth + 1): the nodes that are taken, root first, padded with the last.
        num_accepted: int64, (batch,): drafts on the path.
        emitted: int64, (batch, max_depth + 1): the accepted drafts, then the token behind them; the rest has no
            meaning.
        is_substituted: bool, like emitted: differs from the target's own token; False where the method draws none.
    """

    is_accepted: torch.Tensor
    path: torch.Tensor
    num_accepted: torch.Tensor
    emitted: torch.Tensor
    is_substituted: torch.Tensor


class Verifier:
    """Decides which nodes of a tree are accepted and which path is taken, by the parts that a method is made of.

    Args:
        nearest_codes: int64, (vocab, columns), or None without relaxation.
        spec: the method.
        sampling: temperature decides between the greedy and the sampled rules.

    Raises:
        ValueError: the table is missing or too narrow.
    """

    def __init__(self, nearest_codes: torch.Tensor | None, spec: MethodSpec, sampling: SamplingConfig) -> None:
        self.spec, self.is_greedy = spec, sampling.is_greedy
        self.relaxation = make_relaxation(spec)
        self.table = None
        if self.relaxation is not None:
            columns = spec.k + (spec.residual != "paper")
            if nearest_codes is None or nearest_codes.shape[1] < spec.k:
                found = "no table" if nearest_codes is None else f"a table of {nearest_codes.shape[1]} columns"
                raise ValueError(f"method {spec.method_id or spec.name} needs the {spec.k} nearest codes, got {found}")
            self.table = nearest_codes[:, :columns].contiguous()
        self.rule = acceptance.RejectionRule(self.relaxation, self.table, spec.residual)
        self.follows_first_leaf = self.is_greedy and spec.residual != "paper" and spec.tree == "dynamic"
        self.draws_target_tokens = draws_target_tokens(spec.to_dict(), sampling.temperature)

    def verify(
        self,
        keys: torch.Tensor,
        weights: torch.Tensor,
        logits: torch.Tensor,
        drafts: Drafts,
        noise: NoiseField,
        positions: torch.Tensor,
    ) -> Outcome:
        """Verifies all nodes at once and takes the longest path of accepted ones.

        Args:
            keys: log-weights with the target's noise, (batch, nodes, vocab).
            weights: log-weights after the filters, same shape.
            logits: raw guided logits, same shape.
            drafts: the tree.
            noise: for the decisions of verification by rejection.
            positions: int64, (batch, nodes): image position that each node predicts.

        Returns:
            See `Outcome`.
        """
        is_accepted, drawn = self.decide(keys, weights, logits, drafts, noise, positions)
        order = first_leaf(drafts.tree) if self.follows_first_leaf else None
        path, num_accepted = longest_path(drafts.tree, is_accepted, order)
        own = drawn.gather(1, path)
        drafted = torch.nn.functional.pad(drafts.tokens.gather(1, path[:, 1:]), (0, 1))
        steps = torch.arange(path.shape[1], device=path.device)
        emitted = torch.where(steps == num_accepted[:, None], own, drafted)
        is_substituted = emitted != own if self.draws_target_tokens else torch.zeros_like(emitted, dtype=torch.bool)
        return Outcome(is_accepted, path, num_accepted, emitted, is_substituted)

    def decide(
        self,
        keys: torch.Tensor,
        weights: torch.Tensor,
        logits: torch.Tensor,
        drafts: Drafts,
        noise: NoiseField,
        positions: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Applies the method's rule at every node; arguments as in `verify`.

        Returns:
            (bool (batch, nodes): accepted by its parent; int64 (batch, nodes): the token emitted if no child is
            accepted).
        """
        tree, drawn = drafts.tree, keys.argmax(-1)
        if self.is_greedy and self.relaxation is not None and self.relaxation.bounds_mass:
            table = self.table[:, : self.spec.k]
            return acceptance.accept_greedy(logits, drafts.tokens, tree.parents, table, self.relaxation), drawn
        if not self.draws_target_tokens:
            return self._reject(weights, drawn, drafts, noise, positions)
        if self.relaxation is None:
            return acceptance.accept_exact(drawn, drafts.tokens, tree.parents), drawn
        if not self.relaxation.bounds_mass:
            siblings = tree.earlier_siblings
            return acceptance.accept_look_alikes(drawn, drafts.tokens, tree.parents, siblings, self.table), drawn
        probs = _of_inner(weights, tree).softmax(-1)
        children = child_tokens(drafts)
        rank = acceptance.accept_within_bound(probs, _of_inner(drawn, tree), children, self.table, self.relaxation)
        return _is_ranked(tree, rank), drawn

    def _reject(
        self, weights: torch.Tensor, drawn: torch.Tensor, drafts: Drafts, noise: NoiseField, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tree, children = drafts.tree, child_tokens(drafts)
        inner_positions = _of_inner(positions.expand(drawn.shape), tree)
        uniforms = noise.uniform(inner_positions, children.shape[-1])
        probs = _of_inner(weights, tree).softmax(-1)
        outcome = acceptance.accept_by_rejection(probs, children, drafts.draft_probs, uniforms, self.rule)
        emitted = (outcome.residual.log() + noise.gumbel("target", inner_positions)).argmax(-1)
        if tree.parent_nodes is not None:
            emitted = drawn.index_copy(1, tree.parent_nodes, emitted)
        return _is_ranked(tree, outcome.rank), emitted


def _of_inner(values: torch.Tensor, tree: DraftTree) -> torch.Tensor:
    """Entries (batch, nodes, ...) of the nodes that may have children, (batch, inner, ...)."""
    return values if tree.parent_nodes is None else values.index_select(1, tree.parent_nodes)


def child_tokens(drafts: Drafts) -> torch.Tensor:
    """Drafted tokens of every inner node's children, int64 (batch, inner, m), -1 where there is none."""
    children = drafts.tree.children.expand(len(drafts.tokens), -1, -1)
    tokens = drafts.tokens.gather(1, children.clamp(min=0).flatten(1)).view(children.shape)
    return tokens.masked_fill(children < 0, -1)


def _is_ranked(tree: DraftTree, rank: torch.Tensor) -> torch.Tensor:
    """Turns the rank of each inner node's accepted child into bool (batch, nodes): accepted by its parent."""
    batch, nodes = len(rank), tree.num_nodes
    if tree.parent_nodes is not None:
        rank = rank.new_full((batch, nodes), -1).index_copy(1, tree.parent_nodes, rank)
    return rank.gather(1, tree.parents.expand(batch, nodes)) == tree.ranks
