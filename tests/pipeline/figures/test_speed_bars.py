"""Figure (f): bars."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from figure_tables import SETTINGS, assert_legible, make_summary
from lantern_pipeline.analysis.method_labels import METHODS
from lantern_pipeline.figures.speed_bars import draw_speed_bars


def test_bars_and_intervals_per_temperature():
    greedy = make_summary(0.0).iloc[:2]
    figure = draw_speed_bars(pd.concat([make_summary(), greedy]), SETTINGS)
    assert_legible(figure)
    assert len(figure.axes) == 4
    axes = figure.axes[2]  # temperature 1, speed-up
    assert axes.get_title(loc="left") == (
        "temperature 1; target: cross-entropy 3.25 nats / token, prompt accuracy 75 %"
    )
    assert [bar.get_width() for bar in axes.patches] == [1, 2, 3, 4]
    assert to_rgb(axes.patches[1].get_facecolor()[:3]) == pytest.approx(to_rgb(METHODS["coupled"].colour))
    bars = next(container.lines[2][0] for container in axes.containers if hasattr(container, "lines"))
    assert bars.get_segments()[1][:, 0].tolist() == [1.75, 2.5]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["autoregressive", "coupled", "LANTERN chain k 20, δ 0.1", "proximity k 5"]
    assert len(figure.axes[0].patches) == 2


def test_pooled_rows_are_preferred_and_gaps_are_told():
    pooled = make_summary(repeat="pooled").assign(speedup=[1.0, 9.0, np.nan, 9.0], target_prompt_accuracy=np.nan)
    figure = draw_speed_bars(pd.concat([make_summary(), pooled]), SETTINGS)
    axes = figure.axes[0]
    assert len(axes.patches) == 4
    assert [text.get_text() for text in axes.texts] == ["1.00", "9.00", "not timed", "9.00"]
    assert axes.get_title(loc="left").endswith("cross-entropy 3.25 nats / token")


def test_what_is_missing_is_named():
    with pytest.raises(ValueError, match="target_cross_entropy"):
        draw_speed_bars(make_summary().drop(columns="target_cross_entropy"), SETTINGS)
    with pytest.raises(ValueError, match="prompt set nowhere"):
        draw_speed_bars(make_summary(), {**SETTINGS, "headline_prompt_set": "nowhere"})
