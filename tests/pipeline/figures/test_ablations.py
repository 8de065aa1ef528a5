"""Figure (n): ablations."""

import numpy as np
import pandas as pd
import pytest

from figure_tables import AUTOREGRESSIVE, COUPLED, PROXIMITY, assert_legible, with_interval
from lantern_pipeline.data.tables import method_columns
from lantern_pipeline.figures.ablations import draw_ablations


def variant(ablation, spec, value, **changes):
    row = method_columns(spec.to_dict())
    row |= {
        "ablation": ablation,
        "temperature": 1.0,
        "cfg_scale": 3.0,
        "top_k": 100,
        "drafter_steps": np.nan,
        "target_steps": np.nan,
    }
    row |= with_interval("mean_accepted_length", 1 + value) | with_interval("nll_change", value)
    return row | changes


@pytest.fixture
def table():
    rows = [variant("k", PROXIMITY, 0.1 * k, k=k) for k in (1, 3)]
    rows += [variant("tree", COUPLED, 0.5, tree=tree) for tree in ("chain3", "naive_extend_57")]
    rows += [variant("guidance", spec, 0.5, cfg_scale=s) for s in (1, 3) for spec in (COUPLED, PROXIMITY)]
    rows += [variant("drafter_steps", COUPLED, 0.5, drafter_steps=steps) for steps in (40, np.nan)]
    rows += [variant("guidance", AUTOREGRESSIVE, 0.0)]
    return pd.DataFrame(rows)


def read_panels(figure):
    """Title -> (labels, values of the left panel, values of the right one)."""
    lefts, rights = figure.axes[::2], figure.axes[1::2]
    points = [[[c.lines[0].get_xdata()[0] for c in axes.containers] for axes in side] for side in (lefts, rights)]
    labels = [[text.get_text() for text in axes.get_yticklabels()] for axes in lefts]
    titles = [axes.get_title(loc="left") for axes in lefts]
    return dict(zip(titles, zip(labels, *points, strict=True), strict=True))


def test_labels_say_what_differs(table):
    figure = draw_ablations(table)
    assert_legible(figure)
    panels = read_panels(figure)
    assert list(panels) == ["k (proximity)", "tree (coupled)", "guidance", "drafter steps (coupled)"]
    labels, lengths, changes = panels["k (proximity)"]
    assert labels == ["k 1", "k 3"]
    assert lengths == pytest.approx([1.1, 1.3])
    assert changes == pytest.approx([0.1, 0.3])
    assert panels["tree (coupled)"][0] == ["chain3", "naive extend 57"]
    assert panels["guidance"][0] == [
        "coupled, guidance 1",
        "coupled, guidance 3",
        "proximity, guidance 1",
        "proximity, guidance 3",
    ]
    assert panels["drafter steps (coupled)"][0] == ["40 steps", "as trained"]


def test_autoregressive_rows_are_left_out_and_scales_shared(table):
    figure = draw_ablations(table)
    assert len(read_panels(figure)["guidance"][0]) == 4
    assert len({axes.get_xlim() for axes in figure.axes[::2]}) == 1
    low, high = figure.axes[0].get_xlim()
    assert low < 1 < 1.7 < high


def test_what_is_missing_is_named(table):
    with pytest.raises(ValueError, match="drafter_steps"):
        draw_ablations(table.drop(columns="drafter_steps"))
    with pytest.raises(ValueError, match="methods with drafts"):
        draw_ablations(table[table["method"] == "autoregressive"])
    assert len(draw_ablations(table[table["ablation"] == "k"]).axes) == 2
