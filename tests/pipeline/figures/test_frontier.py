"""Figure (q): speed against total variation."""

import numpy as np
import pytest

from figure_tables import SETTINGS, assert_legible, make_summary
from lantern_pipeline.figures.frontier import draw_frontier


@pytest.fixture
def summary():
    """Coupled drafts at 0 by their substitutions, LANTERN and proximity above."""
    return make_summary().assign(tv_mean=[np.nan, np.nan, 0.3, 0.1], substitution_rate=[np.nan, 0.0, np.nan, 0.2])


def test_rows_stand_at_their_speed_and_distance(summary):
    figure = draw_frontier(summary, SETTINGS)
    assert_legible(figure)
    for above, exact in (figure.axes[::2], figure.axes[1::2]):
        points = [container.lines[0].get_xydata().tolist() for container in above.containers]
        assert points == [[[3, 0.3]], [[4, 0.1]]]
        assert [container.lines[0].get_xdata().tolist() for container in exact.containers] == [[1], [2]]
        faces = [container.lines[0].get_markerfacecolor() for container in (*exact.containers, *above.containers)]
        assert faces[0] == "white" and "white" not in faces[1:]  # all others have a draft model


def test_what_is_not_known_stands_apart(summary):
    figure = draw_frontier(summary.assign(tv_mean=[np.nan, np.nan, np.nan, 0.1]), SETTINGS)
    assert_legible(figure)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["", "", "total variation 0", "", "total variation not known", ""]
    assert [label.get_text() for label in figure.axes[4].get_yticklabels()] == ["LANTERN chain: k 20, δ 0.1"]
    assert [len(axes.containers) for axes in figure.axes] == [1, 1, 2, 2, 1, 1]


def test_pooled_repeats_of_which_no_distance_is_known(summary):
    figure = draw_frontier(summary.assign(tv_mean=np.nan, substitution_rate=np.nan), SETTINGS)
    assert [len(axes.containers) for axes in figure.axes[:2]] == [0, 0]
