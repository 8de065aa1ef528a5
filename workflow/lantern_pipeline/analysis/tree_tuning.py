"""Which static tree pays most: expected tokens of a forward from measured acceptance, over the cost of a step.

Drafts of a draft model: a node of rank r is accepted with the same probability wherever its parent is reached, so that
a path's probability is a product over its ranks and the best tree of n nodes is the n most probable paths. Jacobi
drafts get better while they wait in the window, so every window is measured on its own; beside them, in a hybrid tree,
both parts are looked at step by step, since they fail together.

Source: Sequoia (arXiv 2402.12374), section 3, for trees from acceptance by rank and for the choice by measured cost.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lantern.tree_shapes import JointTree, tree_choices

Path = tuple[int, ...]
# Of one step: ranks of the accepted Jacobi drafts, and of the draft model's; () where none was accepted or drafted.
AcceptedPaths = Sequence[tuple[Path, Path]]
# Beside a window, measured on the last of each, which holds the others: Jacobi siblings at each of the first depths,
# and at how many of them; ranks and depth of the draft model's part of a hybrid tree.
SIBLINGS = ((1, 1), (2, 1), (3, 1))
COMBS = tuple((ranks, depth) for ranks in (1, 2) for depth in (1, 2, 3))


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
        window: of Jacobi drafts; 0 without.
    """

    shape: tuple[Path, ...] | JointTree
    num_nodes: int
    depth: int
    tokens: float
    window: int = 0

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


def drafter_shapes(rates: np.ndarray, max_nodes: int, max_depth: int) -> list[tuple[Path, ...]]:
    """The best trees of a draft model's drafts for every number of nodes and depth, each once."""
    shapes: dict[tuple[Path, ...], None] = {}
    for depth in range(1, max_depth + 1):
        paths = [path for path, _ in most_probable_paths(rates, max_nodes, depth)]
        shapes |= dict.fromkeys(tuple(paths[:num]) for num in range(1, len(paths) + 1))
    return list(shapes) or [comb(1, 1)]  # where nothing was ever accepted


@dataclass(frozen=True)
class Acceptance:
    """What was accepted of one method's drafts.

    Attributes:
        rates: of the draft model's drafts by rank, see `rank_rates`; None where Jacobi drafts stand beside them.
        windows: window -> accepted paths on the widest tree of that window; empty without Jacobi drafts.
    """

    rates: np.ndarray | None
    windows: Mapping[int, AcceptedPaths]

    def candidate(self, shape: tuple[Path, ...] | JointTree) -> Candidate | None:
        """A tree with what is expected of it; None where its window was not measured."""
        sizes = tree_sizes(shape, has_jacobi=bool(self.windows))
        if not self.windows:
            return Candidate(shape, *sizes, expected_tokens(shape, self.rates))
        jacobi, drafter = (shape.jacobi, shape.drafter) if isinstance(shape, JointTree) else (shape, ())
        window = max(map(len, jacobi))
        paths = self.windows.get(window)
        return None if paths is None else Candidate(shape, *sizes, joint_tokens(jacobi, drafter, paths), window)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values: rates by rank; for every window, the share of steps that accepted so many Jacobi drafts."""
        survival = {
            str(window): [float(np.mean([len(path) > depth for path, _ in paths])) for depth in range(window)]
            for window, paths in self.windows.items()
        }
        return {"by_rank": None if self.rates is None else self.rates.tolist(), "by_window": survival}


def shapes_to_try(drafts: str, rates: np.ndarray | None, settings: Mapping[str, Any]) -> list[Any]:
    """The trees to choose from: of a draft model's drafts, the most probable paths by number and depth; windows of
    Jacobi drafts, some with siblings; of hybrid drafts, a small tree beside such a window. `settings`: config section
    `tree_tuning`.
    """
    if drafts == "jacobi":
        return [jacobi_shape(window, *wide) for window in settings["windows"] for wide in SIBLINGS]
    if drafts == "hybrid":
        return [hybrid_shape(window, *beside) for window in settings["windows"] for beside in COMBS]
    return drafter_shapes(rates, settings["max_nodes"], settings["max_depth"])


def jacobi_shape(window: int, num_siblings: int, depth: int) -> tuple[Path, ...]:
    """A chain of Jacobi drafts with siblings at the first depths."""
    return tree_choices(f"chain{window}k{num_siblings}d{min(depth, window)}")


def hybrid_shape(window: int, num_ranks: int, depth: int) -> JointTree:
    """A chain of Jacobi drafts beside a comb of the draft model's."""
    return JointTree(tree_choices(f"chain{window}"), comb(num_ranks, depth))


def tree_sizes(shape: tuple[Path, ...] | JointTree, *, has_jacobi: bool) -> tuple[int, int]:
    """(Drafts in a tree, levels that a draft model drafts one after the other)."""
    if isinstance(shape, JointTree):
        return len(shape.jacobi) + len(shape.drafter), max(map(len, shape.drafter))
    return len(shape), 0 if has_jacobi else max(map(len, shape))


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
    """The best candidate of every number of drafts, or of every window of Jacobi drafts; smallest first."""
    best: dict[int, Candidate] = {}
    for found in candidates:
        size = found.window or found.num_nodes
        best[size] = max(best.get(size, found), found, key=lambda one: one.speedup(cost))
    return sorted(best.values(), key=lambda found: found.num_nodes)


def shape_as_json(shape: Any) -> Any:
    """The shape of a tree as `MethodSpec` takes it from a file."""
    return asdict(shape) if isinstance(shape, JointTree) else [list(path) for path in shape]


def comb(num_ranks: int, depth: int) -> tuple[Path, ...]:
    """The tree on which ranks are measured: at every node of the chain of first children, `num_ranks` children."""
    return tuple((0,) * above + (rank,) for above in range(depth) for rank in range(num_ranks))
