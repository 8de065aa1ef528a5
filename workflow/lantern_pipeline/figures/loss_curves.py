"""The picture beside the trained weights: how each model's loss fell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lantern_pipeline.figures.style import BLUE, PAGE_WIDTH, VERMILLION, new_figure, paper_style

# Title -> (model, values of its history with their labels).
PANELS = {
    "target: cross-entropy (nats / token)": ("target", {"cross_entropy": "batch", "val_cross_entropy": "held out"}),
    "draft model: loss": ("drafter", {"loss": "batch", "val_loss": "held out"}),
    "draft model: tokens / forward": ("drafter", {"val_expected_length": "held out"}),
    "tokenizer: PSNR (dB)": ("tokenizer", {"psnr_db": "batch"}),
    "attribute classifier: loss": ("attribute_classifier", {"loss": "batch"}),
    "CLIP: loss": ("clip", {"loss": "batch"}),
}
COLOURS = {"batch": BLUE, "held out": VERMILLION}


def draw_loss_curves(histories: Mapping[str, Sequence[Mapping[str, float]]]) -> Figure:
    """Draws the logged values of trainings, by model, against optimiser steps: a figure of page width."""
    with paper_style():
        figure = new_figure(PAGE_WIDTH, 3.8)
        panels = figure.subplots(2, 3)
        for axes, (title, (model, curves)) in zip(panels.flat, PANELS.items(), strict=True):
            _draw_panel(axes, histories[model], curves)
            axes.set_title(title, fontsize=8)
        for axes in panels[-1]:
            axes.set_xlabel("optimiser steps")
        figure.legend(*panels[0, 1].get_legend_handles_labels(), loc="outside upper center", ncols=2)
        return figure


def _draw_panel(axes: Axes, history: Sequence[Mapping[str, float]], curves: Mapping[str, str]) -> None:
    for key, label in curves.items():
        points = [(entry["step"], entry[key]) for entry in history if key in entry]
        axes.plot(*zip(*points, strict=True), color=COLOURS[label], label=label)
