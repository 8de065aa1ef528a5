"""Figure (i): maps of acceptance."""

import numpy as np
import pytest

from figure_tables import assert_legible
from lantern_pipeline.figures.acceptance_map import draw_maps
from lantern_pipeline.metrics.acceptance_map import AcceptanceMap


def make_map(scale):
    share = np.array([[0.0, 0.2], [0.4, 0.0]]) * scale
    length = np.array([[1.0, 2.0], [np.nan, 1.0]]) * scale
    return AcceptanceMap(share, length, 7)


def test_two_rows_with_one_scale_each_and_the_ends_hidden():
    figure = draw_maps([make_map(1), make_map(2)], ["coupled", "proximity\nk 5"])
    assert_legible(figure)
    panels = [axes for axes in figure.axes if axes.images]
    assert len(panels) == 4
    share = panels[1].images[0]
    assert share.get_array().filled(np.nan)[0, 1] == pytest.approx(40)
    assert np.isnan(share.get_array().filled(np.nan)[[0, 1], [0, 1]]).all()
    assert share.get_clim() == panels[0].images[0].get_clim() == pytest.approx((20, 80))
    assert [axes.get_xlabel() for axes in panels] == ["mean 30.0", "mean 60.0", "mean 2.00", "mean 4.00"]
    titles = [row.get_suptitle() for row in figure.subfigs]
    assert "accepted drafts (%); 7 images" in titles[0] and "tokens per step" in titles[1]


def test_maps_must_fit_their_titles():
    with pytest.raises(ValueError, match="got 1 maps, 2 titles"):
        draw_maps([make_map(1)], ["a", "b"])
    with pytest.raises(ValueError, match="got 0 maps"):
        draw_maps([], [])
