"""Shapes of draft trees: static ones as choices, by name or listed, and the options of dynamic ones.

A choice is the path of a node from the root, each number the rank of a child among its siblings. Read while Snakemake
builds the workflow: no torch here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from lantern.models.config import OVERSHOOT

MAX_SIBLINGS = 64  # children of one node: so many decisions of acceptance have noise of their own at a position
MAX_WIDTH = 256  # drafts of one depth in a chain with siblings

# Ours, of chains: the path to the first draft of each, and its length. Of 228 nodes the 50 that are accepted most often
# when the embedded target draws 144 captions that no table reports.
_JACOBI_50 = {"0": 20, "1": 7, "2": 5, "01": 5, "001": 3, "3": 2, "4": 2, "0001": 2, "02": 2, "5": 1, "11": 1}
# Each word is a path from the root: "01" is the second-best continuation of the best first token. Source of the first
# two: choices.py of jadohu/LANTERN and SafeAILab/EAGLE.
_LISTED = {
    "naive_extend_57": """0 1 2 3 4 00 01 02 03 10 11 12 20 21 22 30 31 40 000 001 002 003 010 011 012 020 021 022
    030 031 100 101 110 200 0000 0001 0002 0003 0010 0011 0012 0020 0021 0030 0100 0101 0110 0200 00000 00001
    00002 00010 00011 00100 00101 00110 00200""",
    "mc_sim_7b_63": """0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001""",
    "jacobi_50": " ".join(first + n * "0" for first, length in _JACOBI_50.items() for n in range(length)),
}


@dataclass(frozen=True)
class DynamicTreeOptions:
    """Shape of a dynamic tree (EAGLE-2).

    Args:
        num_nodes: drafted nodes kept for verification, root not counted.
        depth: passes of the draft model after the first; paths are up to depth + 1 drafts long.
        top_k: beam width, and children tried per beam node.

    Raises:
        ValueError: a value below 1, paths that are too deep, more children than a node may have, or more nodes than are
            drafted.
    """

    num_nodes: int = 58
    depth: int = 4
    top_k: int = 10

    def __post_init__(self) -> None:
        for name in ("num_nodes", "depth", "top_k"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} of a dynamic tree must be a whole number >= 1, got {value!r}")
        if self.depth >= OVERSHOOT:
            raise ValueError(f"depth of a dynamic tree must be < {OVERSHOOT}, got {self.depth}; choose less")
        if self.top_k > MAX_SIBLINGS:
            raise ValueError(f"top_k of a dynamic tree must be <= {MAX_SIBLINGS}, got {self.top_k}")
        drafted = self.top_k + self.depth * self.top_k**2
        if self.num_nodes > drafted:
            raise ValueError(
                f"num_nodes of a dynamic tree must be <= top_k + depth top_k^2 = {drafted}, got {self.num_nodes}"
            )


Choices = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class JointTree:
    """Two static trees below one root, for hybrid drafts.

    Args:
        jacobi: choices of the tree that Jacobi drafts fill.
        drafter: choices of the tree that the draft model fills.
    """

    jacobi: Choices
    drafter: Choices


TreeShape = Choices | DynamicTreeOptions | JointTree


def tree_choices(tree: str, named: Mapping[str, Sequence[Sequence[int]]] | None = None) -> Choices:
    """Choices of a static tree by its name.

    Args:
        tree: "chain3" (a chain of three drafts; any length), "chain9k3d2" (the same with 3 siblings in place of one
            draft at the first 2 depths), "chain11x2" (two such chains below one root), "naive_extend_57",
            "mc_sim_7b_63", "jacobi_50", or a key of `named`.
        named: further trees, of the config.

    Raises:
        ValueError: an unknown name, lists the known ones; or a tree that is too deep or too wide.
    """
    if named and tree in named:
        return tuple(tuple(path) for path in named[tree])
    if match := re.fullmatch(r"chain([1-9]\d*)(?:k([1-9]\d*)d([1-9]\d*))?", tree):
        length, width, wide_depth = int(match[1]), int(match[2] or 1), int(match[3] or 0)
        if width ** min(length, wide_depth, MAX_WIDTH.bit_length()) > MAX_WIDTH:  # two siblings have no more depths
            raise ValueError(f"tree {tree} must have at most {MAX_WIDTH} drafts of one depth; give it fewer siblings")
        _check_depth(tree, length)
        wide = (path for n in range(1, min(length, wide_depth) + 1) for path in product(range(width), repeat=n))
        return (*wide, *((0,) * n for n in range(wide_depth + 1, length + 1)))
    if match := re.fullmatch(r"chain([1-9]\d*)x([1-9]\d*)", tree):
        _check_depth(tree, length := int(match[1]))
        if (num_chains := int(match[2])) > MAX_SIBLINGS:
            raise ValueError(f"tree {tree} must have at most {MAX_SIBLINGS} chains, got {num_chains}; choose fewer")
        return tuple((rank, *(0,) * n) for n in range(length) for rank in range(num_chains))
    if tree not in _LISTED:
        known = [
            "dynamic",
            "chain1, chain2, ...",
            "chain9k3d2, ...",
            "chain11x2, ...",
            *_LISTED,
            *(named or {}),
        ]
        raise ValueError(f"tree must be one of {', '.join(known)}, got {tree!r}")
    return tuple(tuple(int(digit) for digit in word) for word in _LISTED[tree].split())


def _check_depth(tree: str, depth: int) -> None:
    """Refuse a deep tree before its nodes are listed: their number grows with the square of its depth."""
    if depth > OVERSHOOT:
        raise ValueError(f"tree {tree} must be at most {OVERSHOOT} drafts deep, got {depth}; choose a shallower tree")


def joint_choices(tree: str, named: Mapping[str, Sequence[Sequence[int]]] | None = None) -> JointTree:
    """Choices of two static trees side by side, named as in "chain9+chain3"; `named` as in `tree_choices`.

    Raises:
        ValueError: not two names, or an unknown one.
    """
    names = tree.split("+")
    if len(names) != 2:
        raise ValueError(
            f"tree of hybrid drafts must be two static trees as in chain9+chain3, Jacobi's and the draft model's, got "
            f"{tree!r}"
        )
    return JointTree(*(tree_choices(name.strip(), named) for name in names))


def check_choices(choices: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Choices of a static tree by depth, then lexicographically.

    Raises:
        ValueError: an empty list, a path listed twice, a rank too high, or a path whose parent or lower sibling is
            missing.
    """
    paths = [tuple(path) for path in choices]
    if strange := [rank for path in paths for rank in path if not isinstance(rank, int)]:
        raise ValueError(f"tree choices must be paths of whole numbers, got {strange[0]!r}")
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
