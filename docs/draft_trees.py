"""Draw some draft trees that docs/methods.md names, into docs/draft_trees.svg.

`make diagrams` runs this script.
"""

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from lantern.tree_shapes import Choices, tree_choices

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


if __name__ == "__main__":
    plt.rcParams["svg.hashsalt"] = "lantern"  # otherwise the ids in the file are random
    spaces = [max(max(heights(tree_choices(tree)).values()) for tree in row) + 2 for row in ROWS]
    figure, grid = plt.subplots(2, 4, figsize=(9, 4.2), layout="constrained", height_ratios=spaces)
    for row, space, all_axes in zip(ROWS, spaces, grid, strict=True):
        for (tree, methods), axes in zip(row.items(), all_axes, strict=True):
            choices = tree_choices(tree)
            draw(choices, axes)
            axes.set_title(f"{tree}: {len(choices)} drafts\n({methods})", fontsize=8, loc="left")
            axes.set_xlim(-0.5, 22.5)
            axes.set_ylim(space, -1)
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})
