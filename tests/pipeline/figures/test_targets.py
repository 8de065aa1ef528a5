"""Figure (p): methods over targets."""

import numpy as np
import pandas as pd
import pytest

from figure_tables import SPECS, assert_legible, with_interval
from lantern_pipeline.data.tables import method_columns
from lantern_pipeline.figures.targets import LABEL_HEIGHT, draw_targets


@pytest.fixture
def table():
    """Four methods on three targets, from the best to the worst: the later ones flatter."""
    rows = [
        {**method_columns(spec.to_dict()), "temperature": 1.0, "target_steps": steps, "target_cross_entropy": entropy}
        | with_interval("mean_accepted_length", place + (entropy - 3) * 0.1 * place)
        | with_interval("nll", entropy + 0.1 * place)
        for steps, entropy in ((np.nan, 3.2), (5000, 3.5), (600, 4.5))
        for place, spec in enumerate(SPECS)
    ]
    return pd.DataFrame(rows)


def test_a_line_per_method_and_the_best_target_to_the_right(table):
    figure = draw_targets(table)
    assert_legible(figure)
    above, below = figure.axes[:2]
    assert [text.get_text() for text in below.texts] == ["autoregressive", "LANTERN chain k 20, δ 0.1", "proximity k 5"]
    assert [text.get_text() for text in above.texts] == ["coupled", "LANTERN chain k 20, δ 0.1", "proximity k 5"]
    assert below.xaxis_inverted() and above.get_xlim() == below.get_xlim()
    line, _, bars = above.containers[0].lines
    assert line.get_xydata().tolist() == [pytest.approx(pair) for pair in ([4.5, 1.15], [3.5, 1.05], [3.2, 1.02])]
    assert bars[0].get_segments()[2][:, 1].tolist() == pytest.approx([0.92, 1.22])
    names = [tick.get_text() for tick in above.child_axes[0].get_xticklabels()]
    assert names == ["600", "5,000", "trained"]


def test_names_of_close_lines_are_apart(table):
    close = table.assign(mean_accepted_length=2.0, nll=3.0)
    for axes in draw_targets(close).axes[:2]:
        heights = sorted(text.xyann[1] for text in axes.texts)
        assert len(heights) > 2 and min(np.diff(heights)) > 0.9 * LABEL_HEIGHT


def test_what_is_missing_is_named(table):
    with pytest.raises(ValueError, match=r"target_steps\.csv lacks the columns target_cross_entropy"):
        draw_targets(table.drop(columns="target_cross_entropy"))
