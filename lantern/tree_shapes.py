"""Shapes of draft trees: the paths of static trees, and the options of dynamic ones.

A *choice* is the path from the root to a node. It is a sequence of ranks: rank r means the r-th child of a node. The
first child has rank 0.

Names of trees: "chain3" is a chain of three drafts. "chain9k3d2" is a chain of nine drafts whose root and nodes of
depth 1 have 3 children (k3), so that the first 2 depths are complete (d2). "chain11x2" is two chains of eleven drafts
below one root. "dynamic58k10d4" is a dynamic tree (EAGLE-2) that keeps 58 drafts, with 10 children per node and depth
4. "dynamic" has the same size, that of EAGLE-2's and LANTERN's code. Other names stand for lists of paths.

Snakemake imports this module to plan the workflow, so it must not import torch.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import product

from lantern.extensions import Table
from lantern.models.config import OVERSHOOT
from lantern.whole_numbers import as_whole

MAX_SIBLINGS = 64  # largest number of children of a node
MAX_WIDTH = 256  # largest number of drafts at one depth of a chain with siblings


@dataclass(frozen=True)
class DynamicTreeOptions:
    """Shape of a dynamic tree (EAGLE-2).

    The draft model extends the `top_k` most probable nodes of each depth by `top_k` children. The most probable
    `num_nodes` of all drafts are then verified.
    """

    num_nodes: int = 58  # without the root
    depth: int = 4  # passes of the draft model after the first; the longest path has depth + 1 drafts
    top_k: int = 10  # beam width, and number of children of a node in the beam

    def __post_init__(self) -> None:
        for name in ("num_nodes", "depth", "top_k"):
            value = as_whole(getattr(self, name))
            if value is None or value < 1:
                raise ValueError(f"{name} of a dynamic tree must be an integer >= 1, got {getattr(self, name)!r}")
            object.__setattr__(self, name, value)  # the class is frozen
        if self.depth >= OVERSHOOT:
            raise ValueError(f"depth of a dynamic tree must be < {OVERSHOOT}, got {self.depth}; choose less")
        if self.top_k > MAX_SIBLINGS:
            raise ValueError(f"top_k of a dynamic tree must be <= {MAX_SIBLINGS}, got {self.top_k}")
        # The first pass drafts top_k children of the root. Each later one drafts top_k children of top_k nodes.
        drafted = self.top_k + self.depth * self.top_k**2
        if self.num_nodes > drafted:
            raise ValueError(
                f"num_nodes of a dynamic tree must be <= top_k + depth top_k^2 = {drafted}, got {self.num_nodes}"
            )


_DYNAMIC = re.compile(r"dynamic([1-9]\d*)k([1-9]\d*)d([1-9]\d*)")


def is_dynamic(tree: str) -> bool:
    """Return whether a tree is named "dynamic", or with its size "dynamic58k10d4"."""
    return tree == "dynamic" or _DYNAMIC.fullmatch(tree) is not None


def dynamic_options(tree: str) -> DynamicTreeOptions:
    """Return the options of a dynamic tree from its name, the default size for "dynamic"."""
    match = _DYNAMIC.fullmatch(tree)
    if match is None:
        return DynamicTreeOptions()
    num_nodes, top_k, depth = map(int, match.groups())
    return DynamicTreeOptions(num_nodes, depth, top_k)


Choices = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class JointTree:
    """Two static trees that share their root, for hybrid drafts."""

    jacobi: Choices
    drafter: Choices


TreeShape = Choices | DynamicTreeOptions | JointTree

# Each word is a path from the root: "01" is the second-best token after the best first token.
# Source: choices.py of jadohu/LANTERN and SafeAILab/EAGLE.
_LISTED = {
    "naive_extend_57": """0 1 2 3 4 00 01 02 03 10 11 12 20 21 22 30 31 40 000 001 002 003 010 011 012 020 021 022
    030 031 100 101 110 200 0000 0001 0002 0003 0010 0011 0012 0020 0021 0030 0100 0101 0110 0200 00000 00001
    00002 00010 00011 00100 00101 00110 00200""",
    "mc_sim_7b_63": """0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001""",
}
# Static trees by name. `lantern_methods` adds others.
TREES: Table[Choices] = Table(
    "a tree",
    {name: tuple(tuple(map(int, word)) for word in words.split()) for name, words in _LISTED.items()},
)


def num_drafts(shape: DynamicTreeOptions | JointTree | Sized | None) -> int:
    """Return the number of nodes without the root, 0 if there is no tree."""
    if shape is None:
        return 0
    if isinstance(shape, DynamicTreeOptions):
        return shape.num_nodes
    if isinstance(shape, JointTree):
        return len(shape.jacobi) + len(shape.drafter)
    return len(shape)


def tree_choices(tree: str, named: Mapping[str, Sequence[Sequence[int]]] | None = None) -> Choices:
    """Return the choices of a static tree from its name.

    Args:
        named: further trees by name, from the config.

    Raises:
        ValueError: the name is unknown (the message lists the known ones), or the tree is too deep or too wide.
    """
    if named and tree in named:
        return tuple(tuple(path) for path in named[tree])
    if match := re.fullmatch(r"chain([1-9]\d*)(?:k([1-9]\d*)d([1-9]\d*))?", tree):
        length = int(match[1])
        width = int(match[2] or 1)
        wide_depth = int(match[3] or 0)
        # A huge power takes too long. From width 2 on, the power bit_length(MAX_WIDTH) exceeds MAX_WIDTH anyway.
        if width ** min(length, wide_depth, MAX_WIDTH.bit_length()) > MAX_WIDTH:
            raise ValueError(f"tree {tree} must have at most {MAX_WIDTH} drafts of one depth; give it fewer siblings")
        _check_depth(tree, length)
        # All paths of the complete depths, then the rest of the chain.
        wide = (path for n in range(1, min(length, wide_depth) + 1) for path in product(range(width), repeat=n))
        return (*wide, *((0,) * n for n in range(wide_depth + 1, length + 1)))
    if match := re.fullmatch(r"chain([1-9]\d*)x([1-9]\d*)", tree):
        _check_depth(tree, length := int(match[1]))
        if (num_chains := int(match[2])) > MAX_SIBLINGS:
            raise ValueError(f"tree {tree} must have at most {MAX_SIBLINGS} chains, got {num_chains}; choose fewer")
        return tuple((rank, *(0,) * n) for n in range(length) for rank in range(num_chains))
    if tree not in TREES:
        patterns = "dynamic", "dynamic58k10d4, ...", "chain1, chain2, ...", "chain9k3d2, ...", "chain11x2, ..."
        raise ValueError(f"tree must be one of {', '.join([*patterns, *TREES, *(named or {})])}, got {tree!r}")
    return TREES[tree]


def _check_depth(tree: str, depth: int) -> None:
    # Before paths are listed, whose total length grows with the square of the depth.
    if depth > OVERSHOOT:
        raise ValueError(f"tree {tree} must be at most {OVERSHOOT} drafts deep, got {depth}; choose a shallower tree")


def named_shape(tree: str, named: Mapping[str, Sequence[Sequence[int]]] | None = None) -> TreeShape:
    """Return the shape of any tree, as `tree_choices`. "chain9+chain3" is a joint tree, Jacobi's tree first."""
    if is_dynamic(tree):
        return dynamic_options(tree)
    names = tree.split("+")
    if len(names) == 1:
        return tree_choices(tree, named)
    if len(names) > 2:
        raise ValueError(
            f"tree of hybrid drafts must be two static trees as in chain9+chain3, Jacobi's and the draft model's, got "
            f"{tree!r}"
        )
    return JointTree(*(tree_choices(name.strip(), named) for name in names))


def check_choices(choices: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Return the checked choices, sorted by depth, then lexicographically: in the order of the node numbers.

    Raises:
        ValueError: the list is empty, contains a path twice, or has a rank of MAX_SIBLINGS or more. Or a path is in it
            without its parent, or without a sibling of lower rank.
    """
    if strange := [rank for path in choices for rank in path if as_whole(rank) is None]:
        raise ValueError(f"tree choices must be paths of integers, got {strange[0]!r}")
    paths = [tuple(map(operator.index, path)) for path in choices]  # numpy's integers become ints
    if not paths:
        raise ValueError(
            "tree choices must list at least one path, got none; for no drafts use the autoregressive method"
        )
    known = set(paths)
    if len(known) < len(paths):
        raise ValueError(f"tree choices list the path {list(max(paths, key=paths.count))} twice; list every path once")
    for path in paths:
        if not path or min(path) < 0:
            raise ValueError(f"tree choices must be non-empty paths of ranks >= 0, got {list(path)}")
        if max(path) >= MAX_SIBLINGS:
            raise ValueError(f"tree choices must be paths of ranks below {MAX_SIBLINGS}, got {list(path)}; list fewer")
        if path[:-1] and path[:-1] not in known:
            raise ValueError(f"tree choice {list(path)} lacks its parent {list(path[:-1])}; list it too")
        if path[-1] and (*path[:-1], path[-1] - 1) not in known:
            raise ValueError(f"tree choice {list(path)} lacks its sibling {[*path[:-1], path[-1] - 1]}; list it too")
    return sorted(paths, key=lambda path: (len(path), path))
