"""Tokens per forward of exact drafts over the number of nodes of their static tree, with and without a draft model."""

from __future__ import annotations

import pandas as pd

from lantern.tree_shapes import tree_choices
from lantern_pipeline.tables.claims import needs_draft_model
from lantern_pipeline.tables.markdown import Cells, with_interval
from lantern_pipeline.tables.predict import EAGER, predict_speedup

DRAFTS = {"jacobi": "Jacobi", "hybrid": "hybrid"}  # drafts of the curves, and their titles
LENGTH = "mean_accepted_length"


def num_nodes(tree: str) -> int:
    """Return the number of drafts of a static tree, or of two trees below one root, by name."""
    return sum(len(tree_choices(name)) for name in tree.split("+"))


def node_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the curves with the columns nodes, predicted_low and predicted_high, by drafts and nodes.

    The prediction is the speed-up of these tokens per forward at the lowest and the highest step cost that papers
    published for GPUs.

    Args:
        table: rows, as of `markdown.results_table`.
    """
    rows = table[table["drafts"].isin(list(DRAFTS)) & table["is_exact"].eq(True)]
    rows = rows.assign(nodes=[num_nodes(tree) for tree in rows["tree"]])
    speedups = [
        predict_speedup(length, has_model, EAGER)
        for length, has_model in zip(rows[LENGTH], needs_draft_model(rows), strict=True)
    ]
    rows = rows.assign(
        predicted_low=[low for low, _ in speedups],
        predicted_high=[high for _, high in speedups],
    )
    return rows.sort_values(["drafts", "nodes"], ascending=[False, True], ignore_index=True)


def node_cells(table: pd.DataFrame) -> Cells:
    """Make a table with one line per tree of `node_rows`."""
    cells = [["drafts", "tree", "nodes", "tokens / forward", "speed-up on GPUs (predicted)", "equal to autoregressive"]]
    for _, row in node_rows(table).iterrows():
        num_equal = round(row["num_images"] * row["tokens_equal_autoregressive"])
        cells.append(
            [
                DRAFTS[row["drafts"]],
                f"`{row['tree']}`",
                str(row["nodes"]),
                with_interval(row, LENGTH),
                f"{row['predicted_low']:.1f} to {row['predicted_high']:.1f}",
                f"{num_equal} of {row['num_images']:.0f}",
            ]
        )
    return cells
