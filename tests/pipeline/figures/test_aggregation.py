"""Figure (d): acceptance against the number of aggregated codes."""

import numpy as np
import pandas as pd
import pytest

from figure_tables import assert_legible, with_interval
from lantern_pipeline.figures.aggregation import draw_aggregation


@pytest.fixture
def acceptance():
    rows = [
        {"drafts": drafts, "neighbours": kind, "k": k, "delta": delta}
        | with_interval("acceptance", start + (0 if k == 0 else slope * k), 0.01, 0.02)
        for drafts, start in (("sampled", 0.5), ("top", 0.1))
        for kind, slope in (("l2_normalised", 0.01), ("random", 0.001))
        for delta in (0.1, np.nan)
        for k in (10, 0, 1)
    ]
    return pd.DataFrame(rows)


def test_curves_begin_at_the_value_before(acceptance):
    figure = draw_aggregation(acceptance)
    assert_legible(figure)
    sampled, top = figure.axes
    assert sampled.get_title(loc="left") == "drafts sampled (50.0 % at k = 0)"
    curves = {line.get_label(): line for line in top.lines}
    assert list(curves["before"].get_ydata()) == pytest.approx([10, 10])
    nearest = curves["l2_normalised, no bound"]
    assert nearest.get_xdata().tolist() == [0, 1, 10]
    assert nearest.get_ydata().tolist() == pytest.approx([10, 11, 20])
    assert curves["random, mass ≤ δ = 0.1"].get_linestyle() == "--"
    assert nearest.get_color() == curves["random, no bound"].get_color() != curves["random, mass ≤ δ = 0.1"].get_color()
    assert len(top.collections) == 4


def test_what_is_missing_is_named(acceptance):
    with pytest.raises(ValueError, match="acceptance_high"):
        draw_aggregation(acceptance.drop(columns="acceptance_high"))
    one = draw_aggregation(acceptance[acceptance["drafts"] == "top"])
    assert len(one.axes) == 1
