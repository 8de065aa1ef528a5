"""The table of results in Markdown, for the README and the report, and its place between two markers of a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from lantern.io import write_text
from lantern_pipeline.analysis.method_labels import label_rows
from lantern_pipeline.analysis.summary import preferred_rows
from lantern_pipeline.analysis.verdict import describe_prompts, describe_target, select_headline

HEADER = (
    "method",
    "tokens / forward",
    "speed-up",
    "NLL (nats / token)",
    "prompt accuracy (%)",
    "CLIP score",
    "HPS",
    "FID",
    "TV from the target",
    "substitutions / image",
    "tokens equal to autoregressive (%)",
)
OPTIONAL = ("prompt accuracy (%)", "CLIP score", "HPS", "FID")  # left out where no row has a value
EMPTY = "–"


def render_markdown(summary: pd.DataFrame, settings: Mapping[str, Any]) -> str:
    """Renders the headline rows and the ceilings as a Markdown table.

    Args:
        summary: table of `build_summary`.
        settings: config section `metrics`: headline_prompt_set, headline_temperature.

    Returns:
        Markdown: what the setting and the target are, then the table. Where the distance in law (TV) is not known, as
            with coupled drafts, the share of substituted tokens stands for it, as an upper bound.
    """
    rows = select_headline(summary, settings)
    ceilings = preferred_rows(summary)
    ceilings = ceilings[ceilings["temperature"].isna() & (ceilings["prompt_set"] == settings["headline_prompt_set"])]
    ceilings = ceilings.assign(label=label_rows(ceilings))
    first = rows.iloc[0]
    lines = [
        f"{describe_prompts(first)} of `{first['prompt_set']}`, temperature {first['temperature']:g}, guidance scale "
        f"{first['cfg_scale']:g}; [low, high] are 95 % intervals. {describe_target(first)}",
        "",
    ]
    table = pd.concat([rows, ceilings], ignore_index=True)
    columns = [HEADER, ["---", *["---:"] * (len(HEADER) - 1)], *(_cells(row) for _, row in table.iterrows())]
    return "\n".join([*lines, *(_line(cells) for cells in _drop_unmeasured(columns))]) + "\n"


def update_marked_block(path: Path | str, text: str, name: str = "results") -> bool:
    """Rewrites what stands between `<!-- name:begin -->` and `<!-- name:end -->` in a file.

    Args:
        path: the file, e.g. README.md.
        text: new content of the block.
        name: of the block.

    Returns:
        Whether the file changed; an unchanged file is not written.

    Raises:
        ValueError: the markers are missing, repeated or in the wrong order.
    """
    path = Path(path)
    before = path.read_text(encoding="utf-8")
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if before.count(begin) != 1 or before.count(end) != 1 or before.index(begin) > before.index(end):
        raise ValueError(f"{path} must hold the marker {begin} once and, after it, {end} once")
    head, rest = before.split(begin)
    tail = rest.split(end)[1]
    after = f"{head}{begin}\n{text.strip()}\n{end}{tail}"
    if after != before:
        write_text(path, after)
    return after != before


def _cells(row: pd.Series) -> list[str]:
    return [
        row["label"],
        _with_interval(row, "mean_accepted_length", 2),
        _with_interval(row, "speedup", 2),
        _with_interval(row, "nll", 2),
        _with_interval(row, "prompt_accuracy", 1, factor=100),
        _with_interval(row, "clip_score", 3),
        _with_interval(row, "hps", 4),
        _with_interval(row, "fid", 1),
        _distance(row),
        _number(row["substitutions"], 1),
        _number(100 * row["tokens_equal_autoregressive"], 0),
    ]


def _drop_unmeasured(lines: list) -> list[list[str]]:
    """Drops columns of metrics that no row has; lines are the header, the rule below it and the rows."""
    is_kept = [
        name not in OPTIONAL or any(cells[place] != EMPTY for cells in lines[2:]) for place, name in enumerate(HEADER)
    ]
    return [[cell for cell, kept in zip(cells, is_kept, strict=True) if kept] for cells in lines]


def _with_interval(row: pd.Series, name: str, digits: int, factor: float = 1.0) -> str:
    value, low, high = (factor * row[f"{name}{end}"] for end in ("", "_low", "_high"))
    texts = [_number(number, digits) for number in (value, low, high)]
    if pd.isna(value) or pd.isna(low) or len(set(texts)) == 1:
        return texts[0]
    return f"{texts[0]} [{texts[1]}, {texts[2]}]"


def _distance(row: pd.Series) -> str:
    """The mean TV from the target's law, or its upper bound."""
    if pd.isna(row["tv_mean"]) and not pd.isna(row["substitution_rate"]):
        return f"≤ {_with_interval(row, 'substitution_rate', 3)}"
    return _with_interval(row, "tv_mean", 3)


def _number(value: float, digits: int) -> str:
    return EMPTY if pd.isna(value) else f"{value:.{digits}f}"


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"
