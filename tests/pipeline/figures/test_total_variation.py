"""Figure (h): TV against delta."""

import numpy as np
import pandas as pd
import pytest

from figure_tables import SETTINGS, assert_legible, make_summary, with_interval
from lantern_pipeline.figures.total_variation import draw_total_variation

FACTORS = {"bounded": 0.5, "top_children": 2.0, "sampled_paper": 1.5}


@pytest.fixture
def curves():
    rows = [
        {"rule": rule, "label": f"rule {rule}", "delta": delta, "tv_p95": min(1.0, 2 * factor * delta)}
        | with_interval("tv_mean", factor * delta, 0.0, 0.0)
        for rule, factor in FACTORS.items()
        for delta in (0.4, 0.1, 0.2)
    ]
    return pd.DataFrame(rows)


@pytest.fixture
def law():
    nothing = with_interval("tv_mean", np.nan)
    rows = [
        {"method_id": "autoregressive", "kind": "none", **nothing, **with_interval("substitution_rate", np.nan)},
        {"method_id": "coupled", "kind": "coupling", **nothing, **with_interval("substitution_rate", 0.0)},
        {"method_id": "lantern-k20", "kind": "enumeration"}
        | with_interval("tv_mean", 0.3)
        | with_interval("substitution_rate", np.nan),
        {"method_id": "proximity-k5", "kind": "coupling", **nothing, **with_interval("substitution_rate", 0.2)},
    ]
    return pd.DataFrame(rows).assign(prompt_set="seen", temperature=1.0, repeat="s0n0")


def test_bounded_lies_below_the_line_and_the_others_above(curves, law):
    figure = draw_total_variation(curves, law, make_summary(), SETTINGS)
    assert_legible(figure)
    sampled, top, _ = figure.axes
    lines = {line.get_label(): line for axes in (sampled, top) for line in axes.lines}
    assert lines["TV = δ"].get_xdata().tolist() == lines["TV = δ"].get_ydata().tolist() == [0.1, 0.2, 0.4]
    for rule, factor in FACTORS.items():
        line = lines[f"rule {rule}"]
        assert line.get_xdata().tolist() == [0.1, 0.2, 0.4]
        assert line.get_ydata().tolist() == pytest.approx([0.1 * factor, 0.2 * factor, 0.4 * factor])
    assert {line.get_label() for line in sampled.lines if line.get_label()[0] != "_"} == {
        "TV = δ",
        "95th percentile over nodes",
        "rule sampled_paper",
    }


def test_methods_show_tv_or_the_rate_of_substitutions(curves, law):
    axes = draw_total_variation(curves, law, make_summary(), SETTINGS).axes[2]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["LANTERN chain k 20, δ 0.1", "proximity k 5"]
    points = [container.lines[0] for container in axes.containers]
    assert [point.get_xdata()[0] for point in points] == [0.3, 0.2]
    assert points[1].get_markerfacecolor() == "white"
    deltas = [line for line in axes.lines if line.get_marker() == "|" and len(line.get_xdata()) == 1]
    assert [0.1] in [list(line.get_xdata()) for line in deltas]


def test_pooled_rows_are_preferred(curves, law):
    pooled = law.assign(repeat="pooled", tv_mean=0.5)
    axes = draw_total_variation(curves, pd.concat([law, pooled]), make_summary(), SETTINGS).axes[2]
    assert axes.containers[0].lines[0].get_xdata()[0] == 0.5


@pytest.mark.parametrize(("which", "column"), [(0, "tv_p95"), (1, "kind")])
def test_missing_columns_are_named(curves, law, which, column):
    tables = [curves, law]
    tables[which] = tables[which].drop(columns=column)
    with pytest.raises(ValueError, match=column):
        draw_total_variation(*tables, make_summary(), SETTINGS)
