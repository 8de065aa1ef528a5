"""Figure (g): neighbours."""

import pandas as pd
import pytest

from figure_tables import assert_legible, with_interval
from lantern_pipeline.figures.neighbours import draw_neighbours


@pytest.fixture
def table():
    rows = [
        {"method": "proximity", "neighbours": kind, "k": k, "delta": None, "lambda_": None}
        | with_interval("mean_accepted_length", 2 + gain * k)
        | with_interval("nll_change", 0.01 * k)
        for kind, gain in (("l2_normalised", 0.02), ("random", 0.002))
        for k in (20, 5)
    ]
    exact = {**rows[0], "method": "coupled", "neighbours": None}
    return pd.DataFrame([exact, *rows])


def test_one_curve_per_kind_over_k(table):
    figure = draw_neighbours(table)
    assert_legible(figure)
    (axes,) = figure.axes
    curves = {container.get_label(): container for container in axes.containers}
    assert list(curves) == ["nearest, normalised l2", "random codes"]
    line, _, bars = curves["random codes"].lines
    assert line.get_xdata().tolist() == pytest.approx([2.01, 2.04])
    assert line.get_ydata().tolist() == pytest.approx([0.05, 0.2])
    assert bars[0].get_segments()[0][:, 0].tolist() == pytest.approx([1.91, 2.21])
    assert {text.get_text() for text in axes.texts} == {"k 5", "k 20"}


def test_a_panel_per_method_and_a_curve_per_bound(table):
    other = table.assign(method="lantern_pp", lambda_=2.0)
    figure = draw_neighbours(pd.concat([table, other, other.assign(lambda_=5.0)]))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["proximity", "LANTERN++"]
    assert [len(axes.containers) for axes in figure.axes] == [2, 4]
    assert len(figure.legends[0].get_texts()) == 2


def test_what_is_missing_is_named(table):
    with pytest.raises(ValueError, match="nll_change_low"):
        draw_neighbours(table.drop(columns="nll_change_low"))
    with pytest.raises(ValueError, match="no rows"):
        draw_neighbours(table[table["neighbours"].isna()])
