"""Table of tokens per forward pass of exact methods, by the number of nodes of their static draft tree.

Jacobi drafts need no trained model, hybrid drafts need a draft model or, in its place, a state head. `trees` are the
static trees that the config defines, in its key `trees`. `table` has the run's main results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from lantern.tree_shapes import tree_choices
from lantern_pipeline.tables.claims import needs_draft_model
from lantern_pipeline.tables.markdown import EMPTY, Cells, with_interval
from lantern_pipeline.tables.predict import EAGER, predict_speedup

Trees = Mapping[str, Sequence[Sequence[int]]]  # name of a static tree -> paths of its nodes
# Value of column drafts -> title. A state head corrects outdated hidden states, see docs/methods.md.
DRAFTS = {"jacobi": "Jacobi", "hybrid": "hybrid", "hybrid_head": "state head"}
LENGTH = "tokens_per_forward"


def num_nodes(tree: str, trees: Trees | None = None) -> int:
    """Return the number of nodes of a static tree, or of a joint tree "a+b", without the root."""
    return sum(len(tree_choices(name, trees)) for name in tree.split("+"))


def node_rows(table: pd.DataFrame, trees: Trees | None = None) -> pd.DataFrame:
    """Select the exact methods with drafts in DRAFTS, all of which have static trees, sorted by drafts and nodes.

    Columns predicted_low and predicted_high are speed-ups on a GPU with eager steps, at the highest and lowest
    published relative step cost.
    """
    # `eq(True)`: real images leave cells empty, so the dtype is object, with nan.
    rows = table[table["drafts"].isin(list(DRAFTS)) & table["is_exact"].eq(True)]
    rows = rows.assign(nodes=[num_nodes(tree, trees) for tree in rows["tree"]])
    speedups = [
        predict_speedup(length, has_model, EAGER)
        for length, has_model in zip(rows[LENGTH], needs_draft_model(rows), strict=True)
    ]
    rows = rows.assign(
        predicted_low=[low for low, _ in speedups],
        predicted_high=[high for _, high in speedups],
    )
    # Descending by name: Jacobi, then the state head, then hybrid, which is the order of the legend in figure (s).
    return rows.sort_values(["drafts", "nodes"], ascending=[False, True], ignore_index=True)


def node_cells(table: pd.DataFrame) -> Cells:
    """Make a table with one line per method of `node_rows`."""
    cells = [["drafts", "tree", "nodes", "tokens / forward", "equal to autoregressive"]]
    for _, row in node_rows(table).iterrows():
        # `table` has no count of equal images. The share leaves out images that differ at a near-tie, and is nan if all
        # do.
        share, num_compared = row["tokens_equal_autoregressive"], row["num_images"] - row["num_near_ties"]
        cells.append(
            [
                DRAFTS[row["drafts"]],
                f"`{row['tree']}`",
                str(row["nodes"]),
                with_interval(row, LENGTH),
                EMPTY if pd.isna(share) else f"{round(share * num_compared)} of {row['num_images']:.0f}",
            ]
        )
    return cells
