"""Figure (j): parts of a step."""

import pandas as pd
import pytest

from figure_tables import SETTINGS, assert_legible, make_summary, with_interval
from lantern_pipeline.figures.step_time import draw_step_time


@pytest.fixture
def steps():
    times = {"autoregressive": {"target": 4.0, "other": 1.0}, "coupled": {"draft": 3.0, "target": 6.0, "verify": 1.0}}
    rows = [
        {"method_id": method, "part": part, "num_steps": 9, **with_interval("milliseconds", value)}
        for method, parts in times.items()
        for part, value in parts.items()
    ]
    return pd.DataFrame(rows)


def test_parts_are_stacked_and_sums_compared(steps):
    figure = draw_step_time(steps, make_summary(), SETTINGS)
    assert_legible(figure)
    (axes,) = figure.axes
    bars = {c.get_label(): [(p.get_x(), p.get_width()) for p in c] for c in axes.containers if len(c) == 2}
    assert bars["drafting"] == [(0, 0), (0, 3)]
    assert bars["target forward"] == [(0, 4), (3, 6)]
    assert bars["verification"] == [(4, 0), (9, 1)]
    assert "commit" not in bars
    assert [text.get_text() for text in axes.texts] == ["5.00 ms = 1.00 ×", "10.0 ms = 2.00 ×"]
    assert "in steps of autoregressive decoding" in axes.get_xlabel()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["autoregressive", "coupled"]


def test_what_is_missing_or_unknown_is_named(steps):
    with pytest.raises(ValueError, match="milliseconds_low"):
        draw_step_time(steps.drop(columns="milliseconds_low"), make_summary(), SETTINGS)
    with pytest.raises(ValueError, match="got waiting"):
        draw_step_time(steps.assign(part="waiting"), make_summary(), SETTINGS)
