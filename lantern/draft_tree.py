"""Draft trees: the drafts that are verified together in one forward pass.

Node 0 is the root, the last emitted token. Every other node is a draft for the position after its parent. A parent
comes before its children, and siblings are numbered in drafting order. A *static* tree never changes. It is defined by
a list of *choices*, one per node. A choice is the path from the root to the node, and gives the child's rank among its
siblings at each depth. For example, the choices (0,), (1,) and (0, 0) give the root two children, and its first child
one child. A *dynamic* tree (EAGLE-2) is chosen in every decoding step from the draft model's probabilities.

Axes: rows = batch for a dynamic tree, 1 for a static one; inner = nodes that may have children; m = largest number of
children of a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from lantern.tree_shapes import check_choices


@dataclass
class DraftTree:
    """A tree without tokens."""

    parents: torch.Tensor  # (rows, nodes); the root is its own parent
    depths: torch.Tensor  # (rows, nodes), number of drafts from the root to the node
    ranks: torch.Tensor  # (rows, nodes), rank among its siblings, from 0; 0 for the root
    ancestors: torch.Tensor  # bool (rows, nodes, nodes); [:, n, a] is True if a is n or an ancestor of n
    paths: torch.Tensor  # (rows, nodes, max_depth + 1), nodes from the root to node n, padded with n
    children: torch.Tensor  # (rows, inner, m), nodes; -1 marks a missing one
    parent_nodes: torch.Tensor | None  # (inner,), the inner nodes in the order of `children`; None if all are inner

    @property
    def num_nodes(self) -> int:
        """Number of nodes, including the root."""
        return self.parents.shape[1]

    @property
    def max_depth(self) -> int:
        """Largest number of drafts on a path."""
        return self.paths.shape[2] - 1


def tree_from_parents(parents: torch.Tensor, max_depth: int, max_children: int) -> DraftTree:
    """Compute a tree from the parents, (rows, nodes). All nodes count as inner nodes.

    The sizes are arguments, so that a GPU need not copy them to the host.
    """
    rows, nodes = parents.shape
    device = parents.device
    node = torch.arange(nodes, device=device)
    step = parents
    climbing = [node.expand(rows, nodes)]
    # The root is its own parent, so that climbing past it repeats 0.
    for _ in range(max_depth):
        climbing.append(step)
        step = parents.gather(1, step)
    climb = torch.stack(climbing, dim=2)  # (rows, nodes, max_depth + 1): n, parent of n, ... and the root repeated
    # Each node that is not the root adds 1. In the last column every climb has reached the root.
    depths = (climb[:, :, :-1] != 0).sum(dim=2)
    ancestors = torch.zeros(rows, nodes, nodes, dtype=torch.bool, device=device).scatter_(2, climb, True)
    # The path is the climb read backwards, starting `depth` steps up. Past its end it is read at 0, which is n itself.
    back = depths[:, :, None] - torch.arange(max_depth + 1, device=device)
    paths = climb.gather(2, back.clamp(min=0))
    # Earlier siblings of each node: their number is its rank. The root, its own parent, is no sibling.
    is_sibling = (parents[:, :, None] == parents[:, None, :]) & (node[None, :] < node[:, None]) & (node[None, :] > 0)
    ranks = is_sibling.sum(dim=2)
    # Child r of node n goes to column n * max_children + r, the root, which is no child, to an extra one.
    last = nodes * max_children
    columns = torch.where(node == 0, last, parents * max_children + ranks)
    children = torch.full((rows, last + 1), -1, device=device).scatter_(1, columns, node.expand(rows, nodes))
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
    """A static tree, with the indices by which a draft model fills it level by level.

    A *level* consists of the nodes of one depth that have children. In the example above, the nodes 1, 2 and 3 have the
    levels [0] and [1]. For every node of a level the draft model makes `level_children` drafts, in the example 2 and
    then 1. Draft j of node i of the level has the index i * `level_children` + j. `drafted` lists the indices of those
    that become nodes, in the example [0, 1] and [0].
    """

    parent_nodes: torch.Tensor
    levels: list[torch.Tensor]  # for each level, its nodes
    drafted: list[torch.Tensor]  # for each level, (nodes of the next depth,)
    level_children: list[int]  # for each level, the largest number of children of a node
    inner_ordinal: torch.Tensor  # (nodes,), index among the inner nodes without the root; 0 for all other nodes


def level_indices(tree: StaticTree, level: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where a model that drafts a tree level by level finds the inputs of a level's inner nodes.

    The first tensor holds the index of each one among all nodes of its depth, which selects its token. The second holds
    the index of its parent among the inner nodes of the level above, which selects the parent's hidden state.
    """
    nodes = tree.levels[level]
    if level == 0:
        return nodes, torch.zeros_like(nodes)
    # Nodes are numbered by depth, so that they and each level are in ascending order.
    num_above = int((tree.depths[0] < level).sum())
    return nodes - num_above, torch.searchsorted(tree.levels[level - 1], tree.parents[0, nodes])


def static_structure(parents: Sequence[int], device: torch.device | str = "cpu") -> DraftTree:
    """Compute a static tree from the parents, as `tree_from_parents`, with children of the inner nodes only."""
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    most_children = max(parents[1:].count(parent) for parent in parents)
    # m is at least 1, so that a tree without drafts has no empty axis.
    tree = tree_from_parents(torch.tensor([list(parents)], device=device), max(depths), max(1, most_children))
    parent_nodes = torch.tensor(sorted(set(parents)), device=device)
    # Fewer nodes have to be filled and verified without the leaves.
    return replace(tree, children=tree.children[:, parent_nodes], parent_nodes=parent_nodes)


def first_ranks(tree: DraftTree) -> torch.Tensor:
    """Return the nodes of a static tree's path of first children, root first, int64 (n,)."""
    # Nodes that are no later sibling, and have none among their ancestors. `ancestors` includes the node itself.
    return (tree.ancestors & (tree.ranks > 0)[:, None]).any(-1).logical_not()[0].nonzero().squeeze(1)


def static_tree(choices: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> StaticTree:
    """Make a tree from choices in any order. Nodes are numbered by depth, then lexicographically."""
    ordered = check_choices(choices)
    number = {(): 0} | {path: i + 1 for i, path in enumerate(ordered)}
    parents = [0] + [number[path[:-1]] for path in ordered]
    tree = static_structure(parents, device)
    inner = sorted(set(parents))
    by_level = [[n for n in inner if int(tree.depths[0, n]) == depth] for depth in range(tree.max_depth)]
    index = {node: i for i, node in enumerate(inner)}
    level_children = []
    drafted = []
    for nodes in by_level:
        table = tree.children[0, [index[node] for node in nodes]]  # (nodes of the level, m)
        level_children.append(int((table >= 0).sum(dim=1).max()))
        table = table[:, : level_children[-1]].flatten()
        # Indices of the drafts, in the order of the nodes that they become.
        drafted.append(torch.nonzero(table >= 0).flatten()[table[table >= 0].argsort()])
    ordinal = torch.zeros(tree.num_nodes, dtype=torch.int64, device=device)
    # inner[0] is the root. If no other node has children, the list is empty, hence the dtype.
    ordinal[torch.tensor(inner[1:], dtype=torch.int64)] = torch.arange(len(inner) - 1, device=device)
    return StaticTree(
        **vars(tree),
        levels=[torch.tensor(nodes, device=device) for nodes in by_level],
        drafted=drafted,
        level_children=level_children,
        inner_ordinal=ordinal,
    )


def reached_nodes(tree: DraftTree, is_accepted: torch.Tensor) -> torch.Tensor:
    """Return the nodes whose whole path from the root is accepted, bool (batch, nodes). The root always is."""
    is_cut = tree.ancestors[:, :, 1:] & ~is_accepted[:, None, 1:]  # (batch, node, ancestor)
    return ~is_cut.any(-1)


def longest_path(tree: DraftTree, is_accepted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the deepest node whose whole path from the root is accepted. Of several, the one with the lowest number.

    Args:
        is_accepted: whether each node was accepted as a child of its parent, bool (batch, nodes).

    Returns:
        The path to the node, (batch, max_depth + 1), as in `paths`, and its number of drafts, (batch,).
    """
    counts, best = tree.depths.masked_fill(~reached_nodes(tree, is_accepted), -1).max(dim=1)  # the first of the largest
    index = best[:, None, None].expand(-1, 1, tree.paths.shape[2])
    paths = tree.paths.expand(len(best), -1, -1)
    return paths.gather(1, index).squeeze(1), counts


def of_all_nodes(values: torch.Tensor, tree: DraftTree, fill: int) -> torch.Tensor:
    """Return values of the inner nodes, (batch or 1, inner, ...), for all nodes. The other nodes get `fill`."""
    if tree.parent_nodes is None:
        return values
    whole = values.new_full((len(values), tree.num_nodes, *values.shape[2:]), fill)
    return whole.index_copy(1, tree.parent_nodes, values)


def inner_indices(tree: DraftTree) -> torch.Tensor:
    """Return the index of each node among the inner nodes, or 0, int64 (1, nodes)."""
    num_inner = tree.num_nodes if tree.parent_nodes is None else len(tree.parent_nodes)
    return of_all_nodes(torch.arange(num_inner, device=tree.parents.device)[None], tree, 0)
