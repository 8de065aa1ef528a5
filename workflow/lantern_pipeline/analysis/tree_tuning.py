"""Which static tree pays most: expected tokens of a forward from measured acceptance, over the cost of a step.

Drafts of a draft model: a node of rank r is accepted with the same probability wherever its parent is reached, so that
a path's probability is a product over its ranks and the best tree of n nodes is the n most probable paths. Jacobi
drafts get better while they wait in the window, so every window is measured on its own; beside them, in a hybrid tree,
both parts are looked at step by step, since they fail together.

Source: Sequoia (arXiv 2402.12374), section 3, for trees from acceptance by rank and for the choice by measured cost.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lantern.methods import JointTree, tree_choices

Path = tuple[int, ...]
# Of one step: ranks of the accepted Jacobi drafts, and of the draft model's; () where none was accepted or drafted.
AcceptedPaths = Sequence[tuple[Path, Path]]
JACOBI_SIBLINGS = ((1, 1), (2, 1), (3, 1), (2, 2), (3, 2))  # at each of the first depths, and at how many of them


@dataclass(frozen=True)
class StepCost:
    """Time of a step in steps of autoregressive decoding: base + per_node x drafts + per_depth x depth of drafting."""

    base: float
    per_node: float
    per_depth: float

    def of(self, candidate: Candidate) -> float:
        """Cost of a step with a tree."""
        return self.base + self.per_node * candidate.num_nodes + self.per_depth * candidate.depth


@dataclass(frozen=True)
class Candidate:
    """A tree that could be taken.

    Attributes:
        shape: its choices; of both parts for hybrid drafts.
        num_nodes: drafts in it, the root not counted.
        depth: levels that a draft model drafts one after the other; 0 for Jacobi drafts.
        tokens: expected per forward of the target, its own included.
    """

    shape: tuple[Path, ...] | JointTree
    num_nodes: int
    depth: int
    tokens: float

    def speedup(self, cost: StepCost) -> float:
        """Expected over autoregressive decoding, prefill and the image's last step left out."""
        return self.tokens / cost.of(self)


def rank_rates(paths: Iterable[Path], choices: Iterable[Path]) -> np.ndarray:
    """P(rank r is accepted | its parent is reached), pooled over depths: (ranks,), never rising.

    `paths` are the ranks accepted in each step on the tree `choices`. A rank that seems better than the one before it
    is noise: both get the lower rate, so that the most probable paths always include all earlier siblings.
    """
    known = set(choices)
    accepted, tried = np.zeros((2, 1 + max(path[-1] for path in known)))
    width = {parent: sum((*parent, rank) in known for rank in range(len(tried))) for parent in {p[:-1] for p in known}}
    for path in paths:
        for depth in range(len(path) + 1):
            tried[: width.get(path[:depth], 0)] += 1
            if depth < len(path):
                accepted[path[depth]] += 1
    return np.minimum.accumulate(accepted / tried.clip(min=1))


def most_probable_paths(rates: np.ndarray, num: int, max_depth: int) -> list[tuple[Path, float]]:
    """The paths of at most `max_depth` ranks whose products of rates are highest, best first, with the products; fewer
    than `num` where the rest is never accepted. Parents and earlier siblings come before a path.
    """
    found: list[tuple[Path, float]] = []
    waiting = [(-float(rates[0]), (0,))]
    while waiting and len(found) < num:
        negative, path = heapq.heappop(waiting)
        if negative == 0:
            break
        found.append((path, -negative))
        parent = -negative / rates[path[-1]]
        if path[-1] + 1 < len(rates):
            heapq.heappush(waiting, (-parent * float(rates[path[-1] + 1]), (*path[:-1], path[-1] + 1)))
        if len(path) < max_depth:
            heapq.heappush(waiting, (negative * float(rates[0]), (*path, 0)))
    return found


def expected_tokens(choices: Iterable[Path], rates: np.ndarray) -> float:
    """Tokens per forward of a static tree: the target's own and, node by node, the chance of its being accepted; ranks
    that were not measured count as never accepted.
    """
    known = np.append(rates, 0.0)
    return 1.0 + sum(float(known[np.minimum(path, len(rates))].prod()) for path in choices)


def drafter_candidates(rates: np.ndarray, max_nodes: int, max_depth: int) -> Iterator[Candidate]:
    """The best trees of a draft model's drafts for every number of nodes and depth."""
    for depth in range(1, max_depth + 1):
        found = most_probable_paths(rates, max_nodes, depth)
        tokens, paths = 1.0, []
        for path, probability in found:
            tokens, paths = tokens + probability, [*paths, path]
            yield Candidate(tuple(paths), len(paths), max(map(len, paths)), tokens)


def jacobi_candidates(window: int, paths: AcceptedPaths) -> Iterator[Candidate]:
    """Chains of Jacobi drafts, some with siblings, from what the widest of them accepted in each step."""
    for width, depth in JACOBI_SIBLINGS:
        choices = tree_choices(f"chain{window}k{width}d{min(depth, window)}")
        yield Candidate(choices, len(choices), 0, joint_tokens(choices, (), paths))


def hybrid_candidates(
    window: int, paths: AcceptedPaths, rates: np.ndarray, max_nodes: int, max_depth: int
) -> Iterator[Candidate]:
    """A chain of Jacobi drafts beside the best trees of a draft model with these rates."""
    chain = tree_choices(f"chain{window}")
    for other in drafter_candidates(rates, max_nodes, max_depth):
        tokens = joint_tokens(chain, other.shape, paths)
        yield Candidate(JointTree(chain, other.shape), window + other.num_nodes, other.depth, tokens)


def joint_tokens(jacobi: Iterable[Path], drafter: Iterable[Path], paths: AcceptedPaths) -> float:
    """Mean tokens per forward if only these parts of the measured tree had been there: the deeper of both counts."""
    parts = set(jacobi), set(drafter)
    return 1.0 + float(np.mean([max(map(_covered, parts, accepted)) for accepted in paths]))


def _covered(choices: set[Path], path: Path) -> int:
    """How many of a path's first ranks lie in a tree."""
    return next((depth for depth in range(len(path)) if path[: depth + 1] not in choices), len(path))


def fit_cost(sizes: Sequence[tuple[int, int]], costs: Sequence[float]) -> StepCost:
    """Fits costs, in autoregressive steps, of trees of (nodes, depth) by least squares of relative errors; no part is
    negative.
    """
    from scipy.optimize import nnls

    parts = np.array([(1, *size) for size in sizes], dtype=float) / np.array(costs, dtype=float)[:, None]
    return StepCost(*(float(value) for value in nnls(parts, np.ones(len(parts)))[0]))


def best_candidate(candidates: Iterable[Candidate], cost: StepCost) -> Candidate:
    """The candidate of highest expected speed-up; the smaller one where two are equal."""
    return max(candidates, key=lambda found: (found.speedup(cost), -found.num_nodes))


def best_of_each_size(candidates: Iterable[Candidate], cost: StepCost) -> list[Candidate]:
    """The best candidate of every number of nodes, smallest first."""
    best: dict[int, Candidate] = {}
    for found in candidates:
        known = best.setdefault(found.num_nodes, found)
        best[found.num_nodes] = max(known, found, key=lambda one: one.speedup(cost))
    return [best[size] for size in sorted(best)]


def shape_as_json(shape: Any) -> Any:
    """The shape of a tree as `MethodSpec` takes it from a file."""
    return asdict(shape) if isinstance(shape, JointTree) else [list(path) for path in shape]


def comb(num_ranks: int, depth: int) -> tuple[Path, ...]:
    """The tree on which ranks are measured: at every node of the chain of first children, `num_ranks` children."""
    return tuple((0,) * above + (rank,) for above in range(depth) for rank in range(num_ranks))
