"""The picture of how losses fell."""

from figure_tables import assert_legible
from lantern_pipeline.figures.loss_curves import PANELS, draw_loss_curves


def test_each_panel_shows_a_models_values_where_they_were_logged():
    keys = {key for _, curves in PANELS.values() for key in curves}
    entry = {key: 4.0 for key in keys}
    history = [{"step": 0, **entry}, {"step": 50, "loss": 3.0}, {"step": 99, **entry, "val_cross_entropy": 2.0}]
    figure = draw_loss_curves({model: history for model, _ in PANELS.values()})
    assert_legible(figure)
    lines = {axes.get_title(): {line.get_label(): line for line in axes.lines} for axes in figure.axes}
    assert list(lines["target: cross-entropy (nats / token)"]["held out"].get_ydata()) == [4.0, 2.0]
    assert list(lines["CLIP: loss"]["batch"].get_xdata()) == [0, 50, 99]
