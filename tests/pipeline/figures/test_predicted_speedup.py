"""Figure (o): predicted speed-ups."""

import pandas as pd
import pytest

from figure_tables import assert_legible
from lantern.methods import make_method
from lantern_pipeline.data.tables import method_columns
from lantern_pipeline.figures.predicted_speedup import draw_predicted_speedup

SETTINGS = {"cost": {"base": 1.05, "per_node": 0.002, "per_depth": 0.06}}
COSTS = ("batch 1", "batch 48", "assumed")


@pytest.fixture
def predicted():
    rows = []
    for name in ("coupled", "jacobi"):
        spec = make_method(name, tree="tuned")
        for place, cost in enumerate(COSTS, start=1):
            marks = [("best of its size", 2), ("best of its size", 8), ("tuned", 8), ("published", 57)]
            rows += [
                {**method_columns(spec.to_dict()), "temperature": 1.0, "cost": cost, "mark": mark, "num_nodes": size}
                | {"depth": 1, "tokens_per_forward": 2.0, "speedup": place + size / 100}
                for mark, size in marks
            ]
    return pd.DataFrame(rows)


def test_each_cost_has_a_panel_and_what_is_assumed_is_called_so(predicted):
    figure = draw_predicted_speedup(predicted, SETTINGS)
    assert_legible(figure)
    assert "Predicted" in figure.get_suptitle()
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[0] == "this machine, batch 1\nstep times measured" and "batch 48" in titles[1]
    assert titles[2] == "step times ASSUMED:\n1.05 + 0.002 n + 0.06 d"


def test_curves_and_marks_are_the_tables(predicted):
    figure = draw_predicted_speedup(predicted, SETTINGS)
    curve, tuned, published = figure.axes[1].lines[:3]
    assert curve.get_xydata().tolist() == [[2, 2.02], [8, 2.08]]
    assert tuned.get_xydata().tolist() == [[8, 2.08]] and published.get_xydata().tolist() == [[57, 2.57]]
    assert tuned.get_marker() != published.get_marker()
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["coupled", "Jacobi", "the tuned tree, chosen at batch 1", "the published tree"]


def test_temperatures_are_told_apart(predicted):
    figure = draw_predicted_speedup(pd.concat([predicted, predicted.assign(temperature=0.0)]), SETTINGS)
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts[:4] == ["coupled, T 1", "Jacobi, T 1", "coupled, T 0", "Jacobi, T 0"]


def test_what_is_missing_is_named(predicted):
    with pytest.raises(ValueError, match=r"trees/predicted\.csv lacks the columns mark"):
        draw_predicted_speedup(predicted.drop(columns="mark"), SETTINGS)
