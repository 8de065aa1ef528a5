"""Draft trees: which drafted tokens are verified together, and who follows whom.

Node 0 is the root, the last token already emitted; every other node is a drafted token. Nodes are numbered so that a
parent comes before its children, and siblings in drafting order. A static tree is fixed by a list of choices; a
dynamic one (EAGLE-2) is chosen anew in every step from the draft model's probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from lantern.methods import check_choices


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
        earlier_siblings: bool, (rows, nodes, nodes); None where no node has a sibling.
    """

    parents: torch.Tensor
    depths: torch.Tensor
    ranks: torch.Tensor
    ancestors: torch.Tensor
    paths: torch.Tensor
    children: torch.Tensor
    parent_nodes: torch.Tensor | None
    earlier_siblings: torch.Tensor | None

    @property
    def num_nodes(self) -> int:
        """Nodes, root included."""
        return self.parents.shape[1]

    @property
    def max_depth(self) -> int:
        """Most drafts on a path."""
        return self.paths.shape[2] - 1


def tree_from_parents(parents: torch.Tensor, max_depth: int, max_children: int) -> DraftTree:
    """Derives a tree's structure from its parents, without host synchronisation.

    Args:
        parents: int64, (rows, nodes): parents before children, siblings in drafting order, root its own parent.
        max_depth: longest path from the root allowed.
        max_children: most children of one node allowed.

    Returns:
        The tree, with `children` for every node.
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
        earlier_siblings=is_sibling,
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

    levels: list[torch.Tensor]
    drafted: list[torch.Tensor]
    level_children: list[int]
    inner_ordinal: torch.Tensor


def static_tree(choices: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> StaticTree:
    """Builds the tree of a list of choices.

    Args:
        choices: paths from the root, each a sequence of sibling ranks; every prefix of a path must be listed too, and
            so must every lower rank.
        device: where the tensors live.

    Returns:
        The tree; nodes are numbered by depth, then lexicographically.

    Raises:
        ValueError: an empty list, a path listed twice, or a path whose parent or lower sibling is missing.
    """
    ordered = check_choices(choices)
    number = {(): 0} | {path: i + 1 for i, path in enumerate(ordered)}
    parents = torch.tensor([[0] + [number[path[:-1]] for path in ordered]], device=device)
    max_depth = max(len(path) for path in ordered)
    tree = tree_from_parents(parents, max_depth, 1 + max(path[-1] for path in ordered))
    inner = sorted({number[path[:-1]] for path in ordered})
    by_level = [[n for n in inner if int(tree.depths[0, n]) == depth] for depth in range(max_depth)]
    level_children = [int((tree.children[0, nodes] >= 0).sum(dim=1).max()) for nodes in by_level]
    drafted = []
    for nodes, width in zip(by_level, level_children, strict=True):
        table = tree.children[0, nodes, :width].flatten()
        drafted.append(torch.nonzero(table >= 0).flatten()[table[table >= 0].argsort()])
    parent_nodes = torch.tensor(inner, device=device)
    ordinal = torch.zeros(tree.num_nodes, dtype=torch.int64, device=device)
    ordinal[parent_nodes[1:]] = torch.arange(len(inner) - 1, device=device)
    siblings = tree.earlier_siblings if tree.earlier_siblings.any() else None
    tree = replace(tree, children=tree.children[:, parent_nodes], parent_nodes=parent_nodes, earlier_siblings=siblings)
    return StaticTree(
        **vars(tree),
        levels=[torch.tensor(nodes, device=device) for nodes in by_level],
        drafted=drafted,
        level_children=level_children,
        inner_ordinal=ordinal,
    )
