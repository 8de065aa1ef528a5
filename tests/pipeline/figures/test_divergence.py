"""Figure (m): divergence over the image."""

import pandas as pd
import pytest

from figure_tables import SETTINGS, assert_legible, make_summary, with_interval
from lantern_pipeline.figures.divergence import draw_divergence


@pytest.fixture
def divergence():
    rows = [
        {"method_id": method, "prompt_set": "seen", "temperature": 1.0, "repeat": "s0n0", "position": position}
        | with_interval("share_identical", 1 - loss * position)
        | with_interval("nll_excess", loss * position)
        for method, loss in (("autoregressive", 0.0), ("coupled", 0.0), ("proximity-k5", 0.02), ("proximity-k9", 0.9))
        for position in range(15, -1, -1)
    ]
    return pd.DataFrame(rows)


def test_share_and_excess_of_the_first_of_each_preset(divergence):
    figure = draw_divergence(divergence, make_summary(), SETTINGS)
    assert_legible(figure)
    shares, excess = figure.axes
    curves = {line.get_label(): line for line in shares.lines}
    assert list(curves) == ["coupled", "proximity k 5"]
    assert curves["proximity k 5"].get_xdata().tolist() == list(range(16))
    assert curves["proximity k 5"].get_ydata()[-1] == pytest.approx(70)
    assert next(line for line in excess.lines if line.get_label() == "proximity k 5").get_ydata()[-1] == pytest.approx(
        0.3
    )
    assert shares.get_xticks().tolist() == [0, 4, 8, 12, 16][: len(shares.get_xticks())]
    assert "4 tokens a row" in shares.get_xlabel()


def test_methods_that_never_differ_share_a_line_and_the_legend_of_many_fits(divergence):
    exact = ("eagle2", "jacobi", "hybrid")
    others = [f"lantern_with_a_rather_long_name_{number}" for number in range(7)]
    template = make_summary()
    rows = [template.iloc[[1]].assign(method=name, method_id=name) for name in exact]
    rows += [template.iloc[[2]].assign(method=name, method_id=name) for name in others]
    curves = [divergence[divergence["method_id"] == "coupled"].assign(method_id=name) for name in exact]
    curves += [divergence[divergence["method_id"] == "proximity-k5"].assign(method_id=name) for name in others]
    figure = draw_divergence(pd.concat([divergence, *curves]), pd.concat([template, *rows]), SETTINGS)
    assert_legible(figure)
    labels = [line.get_label() for line in figure.axes[0].lines]
    assert labels[0].replace("\n", " ") == "coupled, EAGLE-2, Jacobi, hybrid" and len(labels) == 1 + 1 + len(others)


def test_other_rows_are_left_out_and_pooled_ones_preferred(divergence):
    more = [divergence.assign(prompt_set="unseen"), divergence.assign(repeat="pooled", nll_excess=7.0)]
    figure = draw_divergence(pd.concat([divergence, *more]), make_summary(), SETTINGS)
    assert set(figure.axes[1].lines[0].get_ydata()) == {7.0}


def test_what_is_missing_is_named(divergence):
    with pytest.raises(ValueError, match="nll_excess"):
        draw_divergence(divergence.drop(columns="nll_excess"), make_summary(), SETTINGS)
    with pytest.raises(ValueError, match="no rows"):
        draw_divergence(divergence.assign(temperature=0.5), make_summary(), SETTINGS)
