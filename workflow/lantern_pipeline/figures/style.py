"""Functions that all figures share: style, colours for colour-blind readers, error bars, titles, reproducible files.

Sizes of figures are in inches. An interval of column x is in x_low and x_high. `factor` multiplies values.
"""

from __future__ import annotations

import logging
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from lantern.io import atomic_path
from lantern_pipeline.measure.speed.speedups import BASELINE
from lantern_pipeline.tables.method_labels import describe_parameters, label_families

if TYPE_CHECKING:
    from lantern.records import GenerationRecords

log = logging.getLogger(__name__)

COLUMN_WIDTH = 3.4  # inches, one column of a two-column paper
PAGE_WIDTH = 7.0  # inches, both columns
LEGEND_MARK, LEGEND_LETTER = 0.5, 0.065  # inches: width of a legend entry's marker with its gap, and of each letter
NAME_WIDTH = 0.055  # width of a slanted name, as a fraction of a panel
# Okabe and Ito (2008), "Color Universal Design"; yellow is left out because it is invisible on white.
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
PALETTE, MARKERS = (VERMILLION, BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE), ("o", "s", "^", "D", "v", "P")
SPEEDS = {"speedup": "speed-up over autoregressive (times)", "tokens_per_forward": "tokens per forward of the target"}
# Colours and matplotlib markers. Most colours are of Okabe and Ito (2008), "Color Universal Design", and of the schemes
# of Tol (2021).
LOOKS = {
    "autoregressive": ("#000000", "*"),
    "eagle1": ("#7F7F7F", "s"),
    "eagle2": ("#56B4E9", "D"),
    "lantern": ("#D55E00", "o"),
    "lantern_pp": ("#E69F00", "^"),
    "coupled": ("#0072B2", "P"),
    "proximity": ("#009E73", "v"),
    "bounded": ("#CC79A7", "X"),
    "jacobi": ("#332288", ">"),
    "hybrid": ("#999933", "p"),
    "jacobi_50": ("#5566CC", "d"),
    "jacobi_100": ("#8899EE", "8"),
    "hybrid_16": ("#BBBB66", "H"),
    "cool": ("#AA4499", "<"),
    "ensemble": ("#6699CC", "x"),
    "mixing": ("#EE3377", "+"),
    "sjd": ("#117733", "1"),
    "scd_gumbel": ("#88CCEE", "2"),
    "scd": ("#DDAA33", "3"),
    "sjd_pp": ("#BB5566", "4"),
    "sjd_pac": ("#004488", "d"),
    "path_relax": ("#997700", "8"),
    "gsd": ("#661177", "H"),
    "zipar": ("#225522", "p"),
    "pjd": ("#AA7744", "h"),
    "ssd": ("#AA3377", "X"),
    "lantern_chain": ("#882255", "h"),
}
# Colours and marker of methods without an entry in LOOKS, such as custom methods. No entry has one of these colours.
SPARE_COLOURS = ("#661100", "#44AA99", "#BBCC33", "#DDCC77")
SPARE_MARKER = "h"
# Look of the line of autoregressive decoding: dashes of 4 line widths, gaps of 3.
AT_BASELINE = {"color": GREY, "linewidth": 0.9, "linestyle": (0, (4, 3)), "zorder": 1}
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
    "pdf.fonttype": 42,  # TrueType; many publishers refuse Type 3, which is matplotlib's default
}


# Suffix of a figure -> metadata without date and software version.
_METADATA = {".png": {"Software": None}, ".pdf": {"CreationDate": None, "Creator": None, "Producer": None}}
FIGURE_SUFFIXES = tuple(_METADATA)


@contextmanager
def paper_style() -> Iterator[None]:
    """Apply the common style of all figures within a `with` block."""
    # From the defaults, not from the user's matplotlibrc, except for the backend.
    settings = {**mpl.rcParamsDefault, "backend": mpl.rcParams["backend"], **_STYLE}
    with mpl.rc_context(settings):  # pyright: ignore[reportArgumentType]  the annotation wants literal keys
        yield


def new_figure(width: float, height: float) -> Figure:
    """Create an empty figure. Call this function within a `paper_style` block."""
    # Not pyplot, which may want a window system and keeps figures in memory.
    return Figure(figsize=(width, height))


def save_figure(figure: Figure, paths: Sequence[Path | str], dpi: int = 200) -> None:
    """Write a figure to .png or .pdf files, atomically.

    The files contain no date and no software version, so that the same figure gives the same bytes. `dpi` counts for
    .png files.
    """
    missing = _add_fonts(figure)
    if missing:
        log.warning(
            "%s shows boxes for %d letters that no font of this machine has, such as %s; install a font of them, for "
            "example the package fonts-noto-cjk for Chinese, Japanese and Korean or fonts-symbola for emoji, and draw "
            "it again",
            *(paths[0], len(missing), missing[:5]),
        )
    # The `paper_style` block has ended, but matplotlib reads these settings only now.
    settings = {name: _STYLE[name] for name in ("font.sans-serif", "pdf.fonttype", "savefig.facecolor")}
    with mpl.rc_context(settings), warnings.catch_warnings():  # pyright: ignore[reportArgumentType]
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font")  # the warning above names them once
        for path in map(Path, paths):
            with atomic_path(path) as temporary:
                figure.savefig(temporary, dpi=dpi, metadata=_METADATA[path.suffix.lower()])


def _add_fonts(figure: Figure) -> str:
    """Give all texts fonts of this machine for letters that DejaVu Sans lacks. Return the letters that no font has."""
    texts = cast("list[Text]", figure.findobj(Text))
    letters = set("".join(text.get_text() for text in texts))
    known = font_manager.get_font(font_manager.findfont("DejaVu Sans")).get_charmap().keys()
    # Controls, marks that join or vary letters, and spaces (categories C, M and Z) need no glyph.
    missing = {ord(letter) for letter in letters if unicodedata.category(letter)[0] not in "CMZ"} - known
    found: dict[Path, set[int]] = {}
    for path in map(Path, font_manager.findSystemFonts() if missing else []):
        with suppress(RuntimeError):  # a file that matplotlib cannot read
            font = font_manager.get_font(path)
            if font.scalable:  # emoji that are pictures cannot be drawn
                found[path] = missing & font.get_charmap().keys()
    families = []
    while any(found.values()):
        # Greedy cover: the font with most missing letters, then a regular one. The path makes the choice repeatable.
        best = max(found, key=lambda path: (len(found[path]), "Regular" in path.stem, path))
        font_manager.fontManager.addfont(best)
        families.append(font_manager.get_font(best).family_name)
        missing -= found[best]
        found = {path: has & missing for path, has in found.items()}
    for text in texts if families else []:
        # Letters that DejaVu Sans has are drawn with it as before, since the first family with a glyph counts.
        text.set_fontfamily([*text.get_fontfamily(), *families])
    return "".join(map(chr, sorted(missing)))


def fitting_columns(labels: Sequence[str]) -> int:
    """Return how many columns a legend below a figure of page width may have for these labels, at most four."""
    return max(1, min(4, int(PAGE_WIDTH / (LEGEND_MARK + LEGEND_LETTER * max(map(len, labels))))))


def half_widths(rows: pd.DataFrame, name: str, factor: float = 1.0) -> np.ndarray:
    """Return the lengths of error bars below and above the value of each row, (2, rows), for `Axes.errorbar`."""
    value, low, high = (factor * rows[name + end].to_numpy(float) for end in ("", "_low", "_high"))
    # 0 without an interval. A bootstrap interval need not contain its value, and a length may not be below 0.
    return np.nan_to_num(np.stack([value - low, high - value])).clip(min=0)


def method_look(method: str, is_open: bool = False) -> dict[str, Any]:
    """Return colour and marker of a method as options of `Axes.errorbar`. The face of an open marker is white.

    If LOOKS does not have the method, its name determines the colour.
    """
    # A sum of bytes, since Python's hash of a str differs from process to process.
    spare = SPARE_COLOURS[sum(method.encode()) % len(SPARE_COLOURS)], SPARE_MARKER
    colour, marker = LOOKS.get(method, spare)
    look = {"color": colour, "marker": marker, "markerfacecolor": "white" if is_open else colour}
    return {**look, "markeredgecolor": colour, "ecolor": (colour, 0.45), "elinewidth": 0.9}  # bars: 45 % opaque


def name_rows(axes: Axes, labels: Iterable[str], **options: Any) -> None:
    """Label the lines of a panel on the vertical axis. Line i is at height i, with the first on top."""
    labels = list(labels)
    axes.set_yticks(range(len(labels)), labels, **options)
    axes.set_ylim(len(labels) - 0.4, -0.6)  # downwards, with 0.6 of a line above the first and below the last


def name_places(axes: Axes, places: pd.Series) -> None:
    """Write names above a panel whose horizontal axis is linear. `places` are positions, with the names as index.

    Names that would overlap are moved apart, and lines lead from them to their positions.
    """
    places = places.sort_values(kind="stable")
    low, high = axes.get_xlim()
    fractions = (places.to_numpy(float) - low) / (high - low)
    apart = fractions.copy()
    # Neighbours that are too close push each other away by half of what is missing, until all have room. A push
    # may make new neighbours too close, hence the rounds.
    for _ in range(500):
        push = (NAME_WIDTH - np.diff(apart)).clip(min=0) / 2
        apart[1:] += push
        apart[:-1] -= push
    for name, place, moved in zip(places.index, fractions, apart, strict=True):
        axes.plot([place, moved], [1, 1.05], color=GREY, linewidth=0.7, transform=axes.transAxes, clip_on=False)
        axes.text(moved, 1.06, name, rotation=60, fontsize=7, color=GREY, transform=axes.transAxes)


def draw_rows(axes: Axes, rows: pd.DataFrame, name: str, **look: Any) -> None:
    """Draw values with their intervals in the look of their methods, one line per row of a table, the first on top."""
    bars = half_widths(rows, name)
    for place, (_, row) in enumerate(rows.iterrows()):
        # A list as index keeps the axis of rows: (2, 1), as `errorbar` wants.
        options = {"xerr": bars[:, [place]], "linestyle": "none", **method_look(row["method"]), **look}
        axes.errorbar([row[name]], [place], **options)
    name_rows(axes, rows["label"])


def draw_band(axes: Axes, x: np.ndarray, low: np.ndarray, high: np.ndarray, colour: str) -> None:
    """Shade the interval around a curve. All arrays are (points,)."""
    axes.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0, zorder=1)


def first_of_each_preset(records: Mapping[str, GenerationRecords]) -> list[str]:
    """Return the id of the first method of each preset, with autoregressive decoding first."""
    first: dict[str, str] = {BASELINE: BASELINE}
    for method_id, record in records.items():
        first.setdefault(record.metadata["method"]["name"], method_id)
    return list(first.values())


def column_titles(records: Sequence[GenerationRecords]) -> list[str]:
    """Write one title per method, for a column of its images: a word of its label per line, then the parameters."""
    methods = [record.metadata["method"] for record in records]
    table = pd.DataFrame([{**method, "method": method["name"]} for method in methods])
    titles = []
    for family, (_, row) in zip(label_families(table), table.iterrows(), strict=True):
        # One word per line, and a hyphen in the longest, since a column may be 0.7 inches wide.
        name = family.replace(" ", "\n").replace("autoregressive", "auto-\nregressive")
        titles.append("\n".join(part for part in (name, describe_parameters(row)) if part))
    return titles
