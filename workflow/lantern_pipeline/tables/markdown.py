"""Result tables as readers see them, in Markdown documents and on HTML pages of the report.

A table is a list of rows of texts (`Cells`), the titles first. `*_cells` functions make such tables from results.
`markdown_table`, `text_table` and `html_page` write them. `claims` are those of one run, from `find_claims`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from lantern.io import write_text
from lantern_pipeline.measure.registry import METRICS, REAL, Metric
from lantern_pipeline.measure.speed.speedups import BASELINE
from lantern_pipeline.tables.claims import MIN_TIMED, num_timed
from lantern_pipeline.tables.generality import LENGTH
from lantern_pipeline.tables.method_labels import label_method
from lantern_pipeline.tables.predict import EAGER, STEP_COSTS
from lantern_pipeline.tables.summary import MetricsSection, select_ceilings, select_headline

EMPTY = "–"
# Metrics that the full table leaves out.
LEFT_OUT = (
    *("latency_s", "kid", "kernel_distance", "precision", "recall", "all_correct"),
    *("efficientnet_kernel_distance", "efficientnet_precision", "efficientnet_recall"),
)
FIRST = ("tokens_per_forward", "nll", "tv_mean", "prompt_accuracy")
LAST = ("relative_step_cost", "speedup")  # they hold for one machine only
_OTHERS = [metric.column for metric in METRICS if not metric.is_distance and metric.column not in LEFT_OUT]
COLUMNS = (*FIRST, *(name for name in _OTHERS if name not in (*FIRST, *LAST)), *LAST)
# Columns of the README without intervals, so that a line stays short.
README_PLAIN = ("tokens_per_forward", "nll", "tv_mean")
# Trees of the README: the authors', ours of about as many nodes, and that of the fastest exact method on a CPU.
LARGE_TREES = ("naive_extend_57", "dynamic58k10d4", "jacobi_50", "hybrid_50")
README_TREES = (*LARGE_TREES, "chain9")
PLAIN = ("substitutions", "tokens_equal_autoregressive")  # metrics that are shown without intervals everywhere
# Table of targets: column -> (title, format, factor). OF_TARGET describes the target, OF_METHOD each method on it.
OF_TARGET = {
    "target_cross_entropy": ("cross-entropy (nats / token)", ".2f", 1),
    "top1": ("top-1", ".2f", 1),
    "top10": ("top-10", ".2f", 1),
    "nll": ("NLL (nats / token)", ".2f", 1),
    "prompt_accuracy": ("prompt accuracy (%)", ".1f", 100),
}
OF_METHOD = {
    LENGTH: ("tokens / forward", ".2f", 1),
    "gain": ("gain", ".2f", 1),
    "nll_change": ("NLL added", "+.2f", 1),
    "prompt_accuracy_change": ("accuracy added (points)", "+.1f", 100),
    "tv_mean": ("TV", ".3f", 1),
}
# The interval in a cell never breaks, and a table scrolls on its own, so that a narrow screen shows all.
PAGE = """{% macro table(cells) %}
<div><table>
{% for row in cells %}
{% set tag = "th" if loop.first else "td" %}
<tr>{% for cell in row %}<{{ tag }}>{{ cell | keep_interval }}</{{ tag }}>{% endfor %}</tr>
{% endfor %}
</table></div>
{% endmacro %}
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{{ title }}</title>
<style>:root { color-scheme: light dark; --page: #fff; --ink: #1d1d1b; --faint: #5c5c58; --line: #ccc }
@media (prefers-color-scheme: dark) {
:root { --page: #151517; --ink: #ececea; --faint: #a3a39d; --line: #37373b } }
body { font-family: sans-serif; margin: 2em auto; padding: 0 1em; line-height: 1.45; max-width: 100em;
background: var(--page); color: var(--ink) }
h2 { font-size: 1em; margin: 1.5em 0 0 } p, summary { margin: 0.3em 0; max-width: 46em }
div { overflow-x: auto; margin: 1em 0 } table { border-collapse: collapse; font-size: 0.8em }
td, th { padding: 0.25em 0.5em; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line) }
td span { white-space: nowrap; color: var(--faint) } td:first-child { min-width: 10.5em }
</style></head>
<body>
<h2>{{ title }}</h2>
{% for block in blocks %}
{% if block is string %}
<p>{{ block }}</p>
{% else %}
{{ table(block) }}
{% endif %}
{% endfor %}
{% for name, cells in folded.items() %}
<details><summary>{{ name }}</summary>{{ table(cells) }}</details>
{% endfor %}
</body></html>
"""
Cells = list[list[str]]  # titles, then rows of texts


def results_table(summary: pd.DataFrame, settings: MetricsSection) -> pd.DataFrame:
    """Return the rows that readers see: the headline rows, real images and their reconstructions."""
    return pd.concat([select_headline(summary, settings), select_ceilings(summary, settings)], ignore_index=True)


def select_few(table: pd.DataFrame) -> pd.DataFrame:
    """Select the rows of `results_table` for the README: README_TREES, autoregressive decoding and real images."""
    return table[table["tree"].isin(README_TREES) | table["method"].isin((BASELINE, REAL))]


def describe_speed(table: pd.DataFrame) -> str:
    """Write what a CPU gains: the fastest exact method, and the range of the methods with large trees."""
    fastest = table[table["is_exact"].eq(True)].nlargest(1, "speedup").iloc[0]
    large = table[table["tree"].isin(LARGE_TREES)]
    low, high, _ = STEP_COSTS[True, EAGER]
    spans = [f"{large[name].min():.2f} to {large[name].max():.2f}" for name in ("speedup", "relative_step_cost")]
    return (
        f"Speed-up on this CPU: {fastest['label']} {with_interval(fastest, 'speedup')}, trees of 50 to 58 drafts "
        f"{spans[0]}. A CPU pays for every draft, so that a step of such a tree takes as long as {spans[1]} steps of "
        f"autoregressive decoding. On GPUs, papers report {low} to {high} for theirs ([sources](docs/gpu.md))."
    )


def method_cells(table: pd.DataFrame, columns: Sequence[str] = COLUMNS, plain: Sequence[str] = ()) -> Cells:
    """Make a table with one line per row of `results_table` and one column per metric with any value.

    `plain` names metrics to show without intervals, in addition to PLAIN.
    """
    rows = [row for _, row in table.iterrows()]
    shown = {"method": [row["label"] for row in rows]}
    metrics = {metric.column: metric for metric in METRICS}
    for name in columns:
        if name in table and table[name].notna().any():
            shown[metrics[name].title] = [_cell(row, metrics[name], name in (*plain, *PLAIN)) for row in rows]
    return [list(shown), *(list(row) for row in zip(*shown.values(), strict=True))]


def target_cells(table: pd.DataFrame, measures: Sequence[str] = tuple(OF_METHOD)) -> Cells:
    """Make a table with one column per target: first its properties, then the results of each method on it.

    Args:
        table: a table with the columns `generality.COLUMNS`.
        measures: keys of OF_METHOD. Relaxed methods show all of them, exact ones only the first.
    """
    of_method = {name: OF_METHOD[name] for name in measures}
    rows, targets = table.set_index(["method_id", "target"]), list(table["target"].unique())
    changes = rows.loc[BASELINE, "differs"].fillna(EMPTY)
    lines = [["what differs", *changes[targets]]]
    for method_id in table["method_id"].unique():
        found = rows.loc[method_id]
        is_exact, label = found["is_exact"].eq(True).iloc[0], label_method(found.iloc[0])
        # An exact method has the target's quality, and only its speed, the first measure, says something new. The
        # baseline's lines describe the target.
        shown = OF_TARGET if method_id == BASELINE else dict([*of_method.items()][: 1 if is_exact else None])
        for column, (title, spec, factor) in shown.items():
            cells = [with_interval(found.loc[target], column, spec, factor) for target in targets]
            if set(cells) != {EMPTY}:
                lines.append([title if method_id == BASELINE else f"{label}: {title}", *cells])
    return [["", *targets], *lines]


def best_cells(claims: Mapping[str, Any]) -> Cells:
    """Make a table of the longest and the fastest exact and relaxed methods (`claims_of_rows`), with their cost."""
    cells = [["chosen by", "method", "tokens / forward", "speed-up on this machine", "cost"]]
    for name in ("exact", "relaxed"):
        longest, fastest = claims.get(name), claims.get(f"{name}_fastest")
        if longest is None:
            cells.append([name, "none was run that keeps the prompt accuracy", EMPTY, EMPTY, EMPTY])
            continue
        chosen = {"most tokens / forward": longest, "highest speed-up": fastest}
        if fastest is None:
            del chosen["highest speed-up"]
        elif fastest["method_id"] == longest["method_id"]:
            chosen = {"most tokens / forward and highest speed-up": longest}
        for reason, row in chosen.items():
            cost = _exact_cost(row) if name == "exact" else _relaxed_cost(row, claims.get("baseline"))
            length, speed = with_interval(row, "tokens_per_forward"), _timed_speed(row)
            cells.append([f"{name}: {reason}", row["label"], length, speed, cost])
    return cells


def _timed_speed(row: Mapping[str, Any]) -> str:
    speed = with_interval(row, "speedup")
    if row["speedup"] is not None and num_timed(row) < MIN_TIMED:
        speed += f" (only {num_timed(row):.0f} prompts timed: too few to tell)"
    return speed


def _exact_cost(row: Mapping[str, Any]) -> str:
    if row["tokens_equal_autoregressive"] == 1:
        return "none: the tokens of autoregressive decoding"
    return "none: the distribution of the target"


def _relaxed_cost(row: Mapping[str, Any], baseline: Mapping[str, Any] | None) -> str:
    """Write what a relaxed method costs in quality. Without a baseline, leave out the NLL."""
    if row["tv_mean"] is None:
        # The share of substitutions is an upper bound of the total variation.
        bound = "" if row["substitution_rate"] is None else "≤ "
        parts = [f"TV {bound}{with_interval(row, 'substitution_rate')}"]
    else:
        parts = [f"TV {with_interval(row, 'tv_mean')}"]
    if baseline is not None:
        parts.append(f"NLL {baseline['nll']:.2f} → {with_interval(row, 'nll')}")
    if row["prompt_accuracy_change"] is not None:
        parts.append(f"prompt accuracy {with_interval(row, 'prompt_accuracy_change', '+.1f', 100)} points")
    return "; ".join(parts)


def claim_cells(claims: Mapping[str, object]) -> Cells:
    """Make a table of all claims of a run, with one number per line.

    The title of a line joins the keys that lead to the number: "exact: speedup" is the speed-up of claim `exact`.
    """
    # The papers' claims are texts with a table of their own.
    return [["claim", "value"], *_flatten({name: part for name, part in claims.items() if name != "papers"}, "")]


def verdict_cells(judged: Sequence[Mapping[str, str]]) -> Cells:
    """Make the table of the papers' claims from those that `judge_papers` judged, at least one."""
    return [list(judged[0]), *(list(row.values()) for row in judged)]


def with_interval(row: Mapping[str, Any], name: str, spec: str = ".2f", factor: float = 1.0) -> str:
    """Write a column of a row, times a factor, as "value [low, high]", or without an interval only the value."""
    ends = [row.get(f"{name}{end}") for end in ("", "_low", "_high")]
    texts = [EMPTY if end is None or pd.isna(end) else f"{factor * end:{spec}}" for end in ends]
    # An interval that equals its value in all shown digits is left out.
    return texts[0] if EMPTY in texts or len(set(texts)) == 1 else f"{texts[0]} [{texts[1]}, {texts[2]}]"


def markdown_table(cells: Cells, num_texts: int = 1) -> str:
    """Write a table in Markdown, with all columns but the first `num_texts` aligned to the right."""
    titles, *rows = cells
    lines = [titles, ["---"] * num_texts + ["---:"] * (len(titles) - num_texts), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def text_table(cells: Cells) -> str:
    """Write a table as plain text, with the same alignment as `markdown_table`."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for first, *others in cells:
        aligned = [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *aligned]))
    return "\n".join(lines)


def html_page(title: str, *blocks: str | Cells, folded: Mapping[str, Cells] | None = None) -> str:
    """Write a self-contained HTML page of the report, with paragraphs and tables as blocks.

    The tables in `folded` (title -> table) follow the blocks and are hidden until a reader opens them.
    """
    return _PAGES.from_string(PAGE).render(title=title, blocks=blocks, folded=folded or {})


def update_marked_block(path: Path, text: str, name: str) -> bool:
    """Replace the text between `<!-- name:begin -->` and `<!-- name:end -->` in a file. Return whether it changed.

    Raises:
        ValueError: the markers are missing, repeated or in the wrong order.
    """
    before = path.read_text(encoding="utf-8")
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if before.count(begin) != 1 or before.count(end) != 1 or before.index(begin) > before.index(end):
        raise ValueError(f"{path} must hold the marker {begin} once and, after it, {end} once")
    head, rest = before.split(begin)
    after = f"{head}{begin}\n{text}\n{end}{rest.split(end)[1]}"
    if after != before:
        write_text(path, after)
    return after != before


def _keep_interval(cell: str) -> Markup:
    """Prevent a line break within the interval at the end of a cell, but not before it."""
    value, space, interval = cell.rpartition(" [")
    if not space or not interval.endswith("]"):
        return escape(cell)
    # `Markup.format` escapes its arguments.
    return Markup("{} <span>[{}</span>").format(value, interval)


def _cell(row: pd.Series, metric: Metric, is_plain: bool) -> str:
    """Write the value of a metric, or an upper bound of an unknown total variation after "≤"."""
    name, bound = metric.column, ""
    if name == "tv_mean" and pd.isna(row["tv_mean"]) and not pd.isna(row["substitution_rate"]):
        name, bound = "substitution_rate", "≤ "
    text = with_interval(row, name, f".{metric.digits}f", metric.factor)
    # The value ends at the first space, where its interval begins.
    return text if text == EMPTY else bound + (text.partition(" ")[0] if is_plain else text)


def _flatten(claims: Mapping[str, object], path: str) -> Iterator[list[str]]:
    for name, value in claims.items():
        place = f"{path}: {name}" if path else name
        if isinstance(value, Mapping):
            yield from _flatten(value, place)
        elif isinstance(value, list):
            # Lists are of labels, or of methods as in claim `frontier`.
            parts = (part["label"] if isinstance(part, Mapping) else str(part) for part in value)
            yield [place, ", ".join(parts) or EMPTY]
        # The ends of an interval are written with their value.
        elif not name.endswith(("_low", "_high")):
            text = EMPTY if value is None else str(value)
            yield [place, with_interval(claims, name, ".3g") if isinstance(value, float) else text]


_PAGES = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
_PAGES.filters["keep_interval"] = _keep_interval
