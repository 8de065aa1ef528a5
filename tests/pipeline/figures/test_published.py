"""Figure (l): published numbers."""

from pathlib import Path

import pytest

import lantern_pipeline.analysis
from figure_tables import SETTINGS, assert_legible, make_summary
from lantern.methods import PRESETS
from lantern_pipeline.data.tables import read_table
from lantern_pipeline.figures.published import draw_published

FILE = Path(lantern_pipeline.analysis.__file__).parent / "published_results.csv"


@pytest.fixture
def published():
    return read_table(FILE)


def test_every_number_names_its_source_and_its_grade(published):
    assert set(published["grade"]) == {"P", "R", "S", "T"}
    assert published[["source", "arxiv"]].notna().all(axis=None)
    assert set(published["method"]) <= {*PRESETS, "pjd"}  # PJD is not run here
    found = published[(published["source"] == "VVS") & (published["model"] == "LlamaGen-XL stage I")]
    assert found["speedup"].tolist() == [1.0, 0.87, 1.45]
    assert found["mean_accepted_length"].tolist() == [1.0, 1.22, 2.1]


def test_published_and_own_numbers_stay_in_their_panels(published):
    figure = draw_published(published, make_summary(), SETTINGS)
    assert_legible(figure)
    left, right = figure.axes
    dots = {line.get_label(): line for line in left.lines if line.get_label() in ("EAGLE-1", "LANTERN")}
    assert dots["EAGLE-1"].get_xdata().tolist() == [2.03, 2.37]
    assert all(line.get_linestyle() == "None" for line in dots.values())
    labels = [label.get_text() for label in left.get_yticklabels()]
    assert labels[0] == "LANTERN, RTX 3090\nLlamaGen-XL stage I, T 0"
    assert "LANTERN++, best case\nmodel not given" in labels
    assert [c.lines[0].get_xdata()[0] for c in right.containers] == [2, 3, 4]
    assert [label.get_text() for label in right.get_yticklabels()] == [
        "coupled",
        "LANTERN chain k 20, δ 0.1",
        "proximity k 5",
    ]


def test_what_is_missing_is_named(published):
    with pytest.raises(ValueError, match="gpu"):
        draw_published(published.drop(columns="gpu"), make_summary(), SETTINGS)
