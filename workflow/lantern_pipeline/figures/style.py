"""One look for all figures: colours for colour-blind readers, sizes of a paper's column, reproducible files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from lantern.io import atomic_path

COLUMN_WIDTH = 3.4  # inches, one column of a two-column paper
PAGE_WIDTH = 7.0  # inches, both columns
# Okabe and Ito (2008), "Color Universal Design"; yellow is left out, it vanishes on white.
BLACK, ORANGE, SKY_BLUE, GREEN, BLUE, VERMILLION, PURPLE, GREY = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
    "#7F7F7F",
)
_STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # ships with matplotlib: the same glyphs on every machine
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.3,
    "lines.markersize": 5,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "figure.constrained_layout.use": True,
    "savefig.facecolor": "white",
    "pdf.fonttype": 42,  # text stays text
    "svg.hashsalt": "lantern",
}


@contextmanager
def paper_style() -> Iterator[None]:
    """Applies the style within a `with` block; the caller's matplotlib settings come back after it."""
    with mpl.rc_context({**mpl.rcParamsDefault, "backend": mpl.rcParams["backend"], **_STYLE}):
        yield


def new_figure(width: float, height: float) -> Figure:
    """A figure of a size in inches that needs no window system; call within `paper_style`."""
    return Figure(figsize=(width, height))


def save_figure(figure: Figure, paths: Sequence[Path | str], dpi: int = 200) -> None:
    """Writes a figure into one file per path, atomically; the suffix decides the format.

    Files of the same figure are the same, byte for byte: no date and no version of the writing software goes in.

    Args:
        figure: made within `paper_style`.
        paths: e.g. a .png and a .pdf.
        dpi: dots per inch of the PNG.
    """
    metadata = {
        ".png": {"Software": None},
        ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    }
    with mpl.rc_context({"pdf.fonttype": 42, "savefig.facecolor": "white"}):
        for path in map(Path, paths):
            if path.suffix not in metadata:
                raise ValueError(f"figures are written as .png or .pdf, got {path}")
            with atomic_path(path) as temporary:
                figure.savefig(temporary, dpi=dpi, metadata=metadata[path.suffix])
