"""Draft trees: which drafted tokens are verified together, and who follows whom.

Node 0 is the root, the last token already emitted; every other node is a drafted token. Nodes are numbered so that a
parent comes before its children, and siblings in drafting order. A static tree is fixed by a list of choices; a
dynamic one (EAGLE-2) is chosen anew in every step from the draft model's probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from lantern.tree_shapes import check_choices


@dataclass
class DraftTree:
    """The structure of a tree; `rows` is the batch for a dynamic tree and 1 for a static one, which all rows share.

    Attributes:
        parents: int64, (rows, nodes); the root is its own parent.
        depths: int64, (rows, nodes); 0 for the root.
        ranks: int64, (rows, nodes); place among the siblings, 0 first; 0 for the root.
        ancestors: bool, (rows, nodes, nodes); [n, m] is True if m is n or an ancestor of n.
        paths: int64, (rows, nodes, max_depth + 1); nodes from the root to n, then n again until the end.
        children: int64, (rows, parents that may have children, most children); node or -1.
        parent_nodes: int64, (inner,): the nodes that may have children, in the order of `children`; None for all nodes.
    """

    parents: torch.Tensor
    depths: torch.Tensor
    ranks: torch.Tensor
    ancestors: torch.Tensor
    paths: torch.Tensor
    children: torch.Tensor
    parent_nodes: torch.Tensor | None

    @property
    def num_nodes(self) -> int:
        """Nodes, root included."""
        return self.parents.shape[1]

    @property
    def max_depth(self) -> int:
        """Most drafts on a path."""
        return self.paths.shape[2] - 1


def tree_from_parents(parents: torch.Tensor, max_depth: int, max_children: int) -> DraftTree:
    """The structure of a tree with these parents, int64 (rows, nodes), parents before children, siblings in drafting
    order, the root its own parent; without host synchronisation, and with `children` for every node.
    """
    rows, nodes = parents.shape
    device = parents.device
    node = torch.arange(nodes, device=device)
    step, climbing = parents, [node.expand(rows, nodes)]
    for _ in range(max_depth):
        climbing.append(step)
        step = parents.gather(1, step)
    climb = torch.stack(climbing, dim=2)  # (rows, nodes, max_depth + 1): n, parent of n, ... and the root repeated
    depths = (climb[:, :, :-1] != 0).sum(dim=2)
    ancestors = torch.zeros(rows, nodes, nodes, dtype=torch.bool, device=device).scatter_(2, climb, True)
    # The path is the climb read backwards, starting `depth` steps up.
    back = depths[:, :, None] - torch.arange(max_depth + 1, device=device)
    paths = climb.gather(2, back.clamp(min=0))
    is_sibling = (parents[:, :, None] == parents[:, None, :]) & (node[None, :] < node[:, None]) & (node[None, :] > 0)
    ranks = is_sibling.sum(dim=2)
    last = nodes * max_children  # this column takes the root, which is nobody's child
    places = torch.where(node == 0, last, parents * max_children + ranks)
    children = torch.full((rows, last + 1), -1, device=device).scatter_(1, places, node.expand(rows, nodes))
    return DraftTree(
        parents=parents,
        depths=depths,
        ranks=ranks,
        ancestors=ancestors,
        paths=paths,
        children=children[:, :-1].view(rows, nodes, max_children),
        parent_nodes=None,
    )


@dataclass
class StaticTree(DraftTree):
    """A tree fixed by choices, with the plan by which the draft model fills it.

    Attributes:
        levels: per depth d >= 1 that is drafted from, the int64 nodes of depth d that have children; level 0 is the
            root.
        drafted: per level, int64 (inner nodes of the level, children): for each node of depth d + 1, in node order,
            where its token stands in the flattened proposals of the level.
        inner_ordinal: int64, (nodes,): place of a node among the non-root nodes that have children; 0 elsewhere.
    """

    parent_nodes: torch.Tensor
    levels: list[torch.Tensor]
    drafted: list[torch.Tensor]
    level_children: list[int]
    inner_ordinal: torch.Tensor


def static_structure(parents: Sequence[int], device: torch.device | str = "cpu") -> DraftTree:
    """The structure of a tree that all images share in every step, with `children` of the nodes that have some; parents
    are ordered as in `tree_from_parents`.
    """
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    most_children = max((parents[1:].count(parent) for parent in parents), default=0)
    tree = tree_from_parents(torch.tensor([list(parents)], device=device), max(depths), max(1, most_children))
    parent_nodes = torch.tensor(sorted(set(parents)), device=device)
    return replace(tree, children=tree.children[:, parent_nodes], parent_nodes=parent_nodes)


def first_ranks(tree: DraftTree) -> torch.Tensor:
    """Nodes of a static tree on whose path from the root all ranks are 0, int64: the root, then a node per depth."""
    return (tree.ancestors & (tree.ranks > 0)[:, None]).any(-1).logical_not()[0].nonzero().squeeze(1)


def join_trees(first: DraftTree, second: DraftTree) -> DraftTree:
    """Two static trees below one root: the nodes of the first keep their numbers, those of the second follow."""
    shift = first.num_nodes - 1
    behind = [parent + shift if parent else 0 for parent in second.parents[0, 1:].tolist()]
    return static_structure(first.parents[0].tolist() + behind, first.parents.device)


def static_tree(choices: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> StaticTree:
    """The tree of a list of choices, paths of sibling ranks from the root; nodes are numbered by depth, then
    lexicographically.

    Raises:
        ValueError: an empty list, a path listed twice, or a path whose parent or lower sibling is missing.
    """
    ordered = check_choices(choices)
    number = {(): 0} | {path: i + 1 for i, path in enumerate(ordered)}
    parents = [0] + [number[path[:-1]] for path in ordered]
    tree = static_structure(parents, device)
    max_depth, inner = tree.max_depth, sorted(set(parents))
    by_level = [[n for n in inner if int(tree.depths[0, n]) == depth] for depth in range(max_depth)]
    place = {node: i for i, node in enumerate(inner)}  # among the nodes with children
    level_children, drafted = [], []
    for nodes in by_level:
        table = tree.children[0, [place[node] for node in nodes]]
        level_children.append(int((table >= 0).sum(dim=1).max()))
        table = table[:, : level_children[-1]].flatten()
        drafted.append(torch.nonzero(table >= 0).flatten()[table[table >= 0].argsort()])
    ordinal = torch.zeros(tree.num_nodes, dtype=torch.int64, device=device)
    ordinal[torch.tensor(inner[1:], dtype=torch.int64)] = torch.arange(len(inner) - 1, device=device)
    return StaticTree(
        **vars(tree),
        levels=[torch.tensor(nodes, device=device) for nodes in by_level],
        drafted=drafted,
        level_children=level_children,
        inner_ordinal=ordinal,
    )


def reached_nodes(tree: DraftTree, is_accepted: torch.Tensor) -> torch.Tensor:
    """Nodes whose whole path from the root is accepted, themselves included: bool (batch, nodes); `is_accepted`, of the
    same shape, says which are accepted by their parents, the root's entry is ignored.
    """
    is_cut = tree.ancestors[:, :, 1:] & ~is_accepted[:, None, 1:]  # (batch, node, ancestor)
    return ~is_cut.any(-1)


def longest_path(
    tree: DraftTree, is_accepted: torch.Tensor, order: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The deepest node whose whole path from the root is accepted; the first of them where there are several.

    `is_accepted` is as in `reached_nodes`; `order`, int64 (batch or 1, nodes) in [0, nodes), says which of several
    deepest nodes is first, by default node numbers. Returns (path, int64 (batch, max_depth + 1),
    padded with its last node; number of accepted drafts, int64 (batch,)).
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


def first_leaf(tree: DraftTree) -> torch.Tensor:
    """Lowest-numbered leaf at or below each node, int64 (rows, nodes).

    The authors' code lists a dynamic tree's paths by leaf and takes the first of the longest; greedy relaxed decoding
    is where several are accepted.
    """
    is_leaf = ~(tree.children >= 0).any(-1)  # (rows, nodes)
    node = torch.arange(tree.num_nodes, device=is_leaf.device)
    below = tree.ancestors & is_leaf[:, :, None]  # (rows, leaf, node)
    return torch.where(below, node[None, :, None], tree.num_nodes - 1).amin(dim=1)


def of_all_nodes(values: torch.Tensor, tree: DraftTree, fill: int) -> torch.Tensor:
    """Values of the nodes that may have children, (rows, inner, ...), among those of all nodes, (rows, nodes, ...)."""
    if tree.parent_nodes is None:
        return values
    whole = values.new_full((len(values), tree.num_nodes, *values.shape[2:]), fill)
    return whole.index_copy(1, tree.parent_nodes, values)


def inner_places(tree: DraftTree) -> torch.Tensor:
    """Place of each node among those that may have children, int64 (1, nodes); 0 for the others."""
    num_inner = tree.num_nodes if tree.parent_nodes is None else len(tree.parent_nodes)
    return of_all_nodes(torch.arange(num_inner, device=tree.parents.device)[None], tree, 0)
