"""Draw some draft trees that docs/methods.md names, and the passes of ZipAR and SSD, into docs/draft_trees.svg.

`make diagrams` runs this script.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes

import lantern
from lantern.models.config import TargetConfig
from lantern.tree_shapes import Choices, tree_choices
from lantern_methods.parallel_lines import lines_of
from lantern_methods.ssd import LineSchedule
from lantern_methods.zipar import line_schedule

# Rows of the figure: tree -> methods that use it.
ROWS: list[dict[str, str]] = [
    {"chain5": "LANTERN chain, COOL-SD", "chain9": "jacobi", "chain11x2": "path_relax", "hybrid_16": "hybrid_16"},
    {
        "mc_sim_7b_63": "EAGLE",
        "naive_extend_57": "LANTERN's authors",
        "jacobi_50": "jacobi_50",
        "chain15k3d2": "sjd_pac",
    },
]


def heights(choices: Choices) -> dict[tuple[int, ...], float]:
    """Return the vertical position of every node: leaves in order, parents at the height of their first child.

    Args:
        choices: path from the root to each node.

    Returns:
        Path -> height, in lines from the top. The root has the empty path.
    """
    placed: dict[tuple[int, ...], float] = {}
    num_leaves = 0
    for node in sorted(choices):
        is_leaf = not any(other[:-1] == node for other in choices)
        if is_leaf:
            line = num_leaves
            num_leaves += 1
            while node and node not in placed:  # first children share the line of their parent
                placed[node] = line
                node = node[:-1]
    return {(): 0.0, **placed}


def draw(choices: Choices, axes: Axes) -> None:
    """Draw one tree: the root on the left, and a column per depth.

    Args:
        choices: path from the root of each node.
        axes: axes to draw into.
    """
    lines = heights(choices)
    for node in choices:
        axes.plot([len(node) - 1, len(node)], [lines[node[:-1]], lines[node]], color="0.6", linewidth=0.8, zorder=1)
    axes.scatter([len(node) for node in lines], list(lines.values()), s=9, color="C0", zorder=2)
    axes.scatter([0], [0], s=22, color="black", zorder=3)
    axes.axis("off")


def zipar_passes(config: TargetConfig, window: int) -> list[int]:
    """Return the forward pass in which ZipAR emits each token, 0 for the prefill."""
    emitted = {0: 0}
    for number, feeds in enumerate(line_schedule(lines_of(config, window)), start=1):
        emitted |= {feed.sampled: number for feed in feeds if feed.sampled is not None}
    return [emitted[position] for position in range(config.num_image_tokens)]


def ssd_passes(config: TargetConfig, num_right: int, rounds: int) -> list[int]:
    """Return the forward pass in which SSD emits each token, 0 for the prefill."""
    schedule = LineSchedule.of(config, num_right, rounds, torch.device("cpu"))
    passes = [0]
    while (length := len(passes)) < config.num_image_tokens:
        # A last pass emits the rest of a block and one token more, a round one token.
        count = int(schedule.ends[length]) - length + 1 if schedule.is_last[length] else 1
        passes += count * [passes[-1] + 1]
    return passes[: config.num_image_tokens]


def draw_passes(passes: list[int], width: int, axes: Axes) -> None:
    """Draw the grid of an image with the number of the pass that emits each token."""
    rows = [passes[begin : begin + width] for begin in range(0, len(passes), width)]
    axes.imshow(rows, cmap="Blues", vmin=-max(passes) / 4, vmax=max(passes) * 1.6)
    for line, row in enumerate(rows):
        for column, number in enumerate(row):
            axes.text(column, line, str(number), ha="center", va="center", fontsize=7)
    axes.axis("off")


def main() -> None:
    """Draw the figure."""
    plt.rcParams["svg.hashsalt"] = "lantern"  # otherwise the ids in the file are random
    spaces = [max(max(heights(tree_choices(tree)).values()) for tree in row) + 2 for row in ROWS]
    figure = plt.figure(figsize=(9, 6.4), layout="constrained")
    trees, grids = figure.subfigures(2, 1, height_ratios=(4.2, 2.2))
    for row, space, all_axes in zip(ROWS, spaces, trees.subplots(2, 4, height_ratios=spaces), strict=True):
        for (tree, methods), axes in zip(row.items(), all_axes, strict=True):
            choices = tree_choices(tree)
            draw(choices, axes)
            axes.set_title(f"{tree}: {len(choices)} drafts\n({methods})", fontsize=8, loc="left")
            axes.set_xlim(-0.5, 22.5)
            axes.set_ylim(space, -1)
    config = lantern.load("embedded").models.target.config
    passes = {
        "autoregressive": list(range(config.num_image_tokens)),
        "zipar, window 2": zipar_passes(config, 2),
        "ssd, 2 rounds": ssd_passes(config, num_right=3, rounds=2),
    }
    for (name, numbers), axes in zip(passes.items(), grids.subplots(1, len(passes)), strict=True):
        draw_passes(numbers, config.line_width, axes)
        axes.set_title(f"{name}: {max(numbers) + 1} forward passes", fontsize=8, loc="left")
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
