"""Figure (r): methods over the ambiguity of many targets."""

import numpy as np
import pandas as pd
import pytest

from figure_tables import SPECS, assert_legible, with_interval
from lantern_pipeline.analysis.generality import COLUMNS
from lantern_pipeline.data.tables import method_columns
from lantern_pipeline.figures.generality import draw_generality

TARGETS = {"base": 0.80, "chameleon": 0.79, "janus": 0.79, "codes_4096": 0.5}


@pytest.fixture
def table():
    """Four methods on four targets, three of which are alike."""
    gain = {"gain": np.nan, "gain_low": np.nan, "gain_high": np.nan}
    rows = [
        {"target": name, "top10": mass, **method_columns(spec.to_dict())}
        | with_interval("mean_accepted_length", place + 1 - mass)
        | (gain if spec.is_exact else with_interval("gain", 1.5 - mass))
        for name, mass in TARGETS.items()
        for place, spec in enumerate(SPECS, 1)
    ]
    return pd.DataFrame(rows).reindex(columns=list(COLUMNS))


def test_a_marker_per_method_and_target_and_the_names_apart(table):
    figure = draw_generality(table)
    assert_legible(figure)
    left, right = figure.axes
    assert [len(axes.containers) for axes in (left, right)] == [3, 2]
    points = left.containers[0].lines[0].get_xydata()
    assert points[:, 0].tolist() == pytest.approx([1 - mass for mass in TARGETS.values()])
    faces = [container.lines[0].get_markerfacecolor() for container in left.containers]
    assert faces[0] == "white" and "white" not in faces[1:]
    for axes in (left, right):
        places = [text.get_position()[0] for text in axes.texts]
        assert {text.get_text() for text in axes.texts} == set(TARGETS)
        assert np.diff(sorted(places)).min() > 0.05


def test_what_is_missing_is_named(table):
    with pytest.raises(ValueError, match=r"generality\.csv lacks the columns top10"):
        draw_generality(table.drop(columns="top10"))
