"""Results for readers: blocks of README.md and docs/results.md between two markers, and a page of the report."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lantern.io import read_json, write_text
from lantern_pipeline.analysis.findings import EMPTY, Finding, describe_prompts, with_interval
from lantern_pipeline.analysis.generality import TITLE, cost_cells, judge_generality, speed_cells, with_labels
from lantern_pipeline.analysis.method_labels import preset_of
from lantern_pipeline.analysis.peers import QUESTIONS
from lantern_pipeline.analysis.summary import select_ceilings, select_headline
from lantern_pipeline.analysis.targets import QUESTION, judge_targets, side_by_side_cells
from lantern_pipeline.data.tables import read_table
from lantern_pipeline.metrics.registry import METRICS, REAL, Metric
from lantern_pipeline.metrics.speed import BASELINE

# The full table has every metric but these.
LEFT_OUT = ("latency_s", "kid", "kernel_distance", "precision", "recall", "all_correct")
COLUMNS = tuple(metric.column for metric in METRICS if not metric.is_distance and metric.column not in LEFT_OUT)
# Of the README; the first and the last without intervals, so that a line stays short.
README_COLUMNS = ("mean_accepted_length", "speedup", "nll", "prompt_accuracy", "tv_mean")
PLAIN = ("substitutions", "tokens_equal_autoregressive")  # shown without intervals everywhere
# In the README at most; NUM_EXACT of those with a draft model, and one without.
NUM_EXACT, NUM_RELAXED, NUM_FINDINGS = 2, 4, 5
LINE = 120  # characters
_GENERALITY = (
    "Cross-entropy: of the target on held-out images, nats per token; top-1, top-10: its guided mean probability of "
    "the best token and of the best ten there. Columns of methods: tokens per forward; [low, high] are 95 % intervals "
    "over prompts. A line's end (target.line_end) counts as a token in both, and is known."
)
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<style>body {{ font-family: sans-serif; max-width: 46em; margin: 2em auto; padding: 0 1em; line-height: 1.45 }}
h2 {{ font-size: 1em; margin: 1.5em 0 0 }} p {{ margin: 0.3em 0 }} div {{ overflow-x: auto }}
table {{ border-collapse: collapse; font-size: 0.85em }} td, th {{ padding: 0.2em 0.6em; text-align: left }}
tr {{ border-bottom: 1px solid #ccc }} td {{ white-space: nowrap }}</style></head>
<body>
{body}
</body></html>
"""


def results_table(summary: pd.DataFrame, settings: Mapping[str, Any]) -> pd.DataFrame:
    """The rows that readers are shown: the headline's, then its ceilings."""
    return pd.concat([select_headline(summary, settings), select_ceilings(summary, settings)], ignore_index=True)


def select_few(table: pd.DataFrame) -> pd.DataFrame:
    """Selects at most nine rows of `results_table` for the README, in the table's order.

    Autoregressive decoding and real images; of every preset the row with the highest speed-up (the first where none was
    timed); of exact presets the two fastest and the fastest without a draft model, of relaxed ones the first four.
    """
    is_end = table["method"].isin((BASELINE, REAL))
    decoded = table[table["relaxation"].notna() & ~is_end]
    preset = decoded["method"].map(preset_of)
    best = decoded.loc[decoded["speedup"].fillna(0).groupby(preset, sort=False).idxmax()]
    exact, relaxed = (best[(best["relaxation"] == "none") == is_exact] for is_exact in (True, False))
    alone, drafted = (exact[(exact["drafts"] == "jacobi") == is_alone] for is_alone in (True, False))
    kept = [*alone.nlargest(1, "speedup").index, *drafted.nlargest(NUM_EXACT, "speedup").index]
    kept += list(relaxed.index[:NUM_RELAXED])
    return table[is_end | table.index.isin(kept)]


def render_readme(findings: Sequence[Finding], table: pd.DataFrame) -> str:
    """The README's block: what was run, a small table, the first findings in a line each."""
    shown = _render_table(select_few(table), README_COLUMNS, without_interval=("mean_accepted_length", "tv_mean"))
    bullets = [f"- **{finding.question}** {finding.answer}" for finding in findings[:NUM_FINDINGS]]
    return "\n\n".join([_wrap(describe_setting(table)), shown, "\n".join(_wrap(bullet, "  ") for bullet in bullets)])


def render_results(findings: Sequence[Finding], table: pd.DataFrame, figures: Mapping[str, str], *more: str) -> str:
    """The block of docs/results.md: the full table, all findings, more sections, and figures (letter -> its line)."""
    answers = [_wrap(f"- **{finding.question}** {finding.answer} {finding.details}", "  ") for finding in findings]
    drawn = [f"- ({letter}) {line}" for letter, line in figures.items()]
    headed = ["## Table", _render_table(table, COLUMNS), "## Findings", "\n".join(answers), *more]
    return "\n\n".join([_wrap(describe_setting(table)), *headed, "## Figures", "\n".join(drawn)])


def render_page(findings: Sequence[Finding], table: pd.DataFrame) -> str:
    """The report's page of findings and the full table, as HTML that needs nothing else."""
    lines = [f"<p>{html.escape(describe_setting(table))}</p>"]
    lines += map(_html_finding, findings)
    titles, *rows = _table_cells(table, COLUMNS)
    lines += ["<h2>Table</h2>", "<div><table>", _html_row(titles, "th")]
    return PAGE.format(title="Findings", body="\n".join([*lines, *map(_html_row, rows), "</table></div>"]))


def render_targets(table: pd.DataFrame, steps: pd.DataFrame | None = None) -> str:
    """The section of docs/results.md on two targets: what became of the methods, and a table. For arguments see
    `judge_targets`.
    """
    answer, facts = judge_targets(table, steps)
    bullets = "\n".join(_wrap(f"- {fact}", "  ") for fact in facts)
    shown = _markdown_table(side_by_side_cells(table, _cell))
    picture = [] if steps is None else ["![Tokens per forward and NLL over cross-entropy](fig_p_targets.png)"]
    return "\n\n".join([f"## {QUESTION}", _wrap(answer), bullets, shown, *picture])


def render_targets_page(table: pd.DataFrame, steps: pd.DataFrame | None = None) -> str:
    """The report's page on two targets, as HTML that needs nothing else."""
    (answer, facts), (titles, *rows) = judge_targets(table, steps), side_by_side_cells(table, _cell)
    bullets = "\n".join(f"<li>{html.escape(fact)}</li>" for fact in facts)
    head = f"<h2>{QUESTION}</h2>\n<p><b>{html.escape(answer)}</b></p>\n<ul>{bullets}</ul>"
    body = [head, "<div><table>", _html_row(titles, "th"), *map(_html_row, rows), "</table></div>"]
    return PAGE.format(title="Two targets", body="\n".join(body))


def render_peers(findings: Sequence[Finding], table: pd.DataFrame) -> str:
    """The section of docs/results.md on the run of experiments/peers.yaml: table, findings about the peers, figure."""
    told = [finding for finding in findings if finding.question in QUESTIONS]
    answers = [_wrap(f"- **{finding.question}** {finding.answer} {finding.details}", "  ") for finding in told]
    shown = _render_table(table, (*COLUMNS, "latency_s"))
    picture = "![Total variation from the target over speed](fig_q_frontier.png)"
    head = _wrap(f"The run of `experiments/peers.yaml`, on the default run's models: {describe_setting(table)}")
    return "\n\n".join(["## Peers", head, shown, "\n".join(answers), picture])


def render_generality(table: pd.DataFrame) -> str:
    """The section of docs/results.md on the run of experiments/generality.yaml: verdict, tables, figure."""
    rows = with_labels(table)
    bullets = [f"- **{found.question}** {found.answer} {found.details}".strip() for found in judge_generality(rows)]
    head = f"The run of `experiments/generality.yaml`; every target is trained by it, none for long. {_GENERALITY}"
    shown = [_markdown_table(cells) for cells in (speed_cells(rows), cost_cells(rows))]
    picture = "![Tokens per forward over the ambiguity of many targets](fig_r_generality.png)"
    answers = "\n".join(_wrap(bullet, "  ") for bullet in bullets)
    return "\n\n".join([f"## {TITLE}", _wrap(head), answers, *shown, picture])


def render_generality_page(table: pd.DataFrame) -> str:
    """The report's page on many targets, as HTML that needs nothing else."""
    rows = with_labels(table)
    lines = [f"<p>{html.escape(_GENERALITY)}</p>", *map(_html_finding, judge_generality(rows))]
    for titles, *cells in (speed_cells(rows), cost_cells(rows)):
        lines += ["<div><table>", _html_row(titles, "th"), *map(_html_row, cells), "</table></div>"]
    return PAGE.format(title=TITLE, body="\n".join([f"<h2>{TITLE}</h2>", *lines]))


def publish(root: Path) -> list[str]:
    """Writes the blocks of README.md and docs/results.md from docs/results.csv and docs/findings.json,
    and where they are there, docs/targets.csv, docs/targets/target_steps.csv, docs/peers.csv, docs/peers.json and the
    table of experiments/generality.yaml.

    A figure's line is the first sentence of its caption. Returns the names of the pages that changed.
    """
    findings = _read_findings(root / "docs" / "findings.json")
    table = read_table(root / "docs" / "results.csv")
    captions = sorted((root / "workflow" / "report").glob("fig_*.rst"))
    figures = {path.stem.split("_")[1]: path.read_text(encoding="utf-8").split("**")[1] for path in captions}
    pages = {"README.md": render_readme(findings, table)}
    side_by_side, steps = (_read_if_there(root / "docs" / name) for name in ("targets.csv", "targets/target_steps.csv"))
    more = [] if side_by_side is None else [render_targets(side_by_side, steps)]
    peers = _read_if_there(root / "docs" / "peers.csv")
    more += [] if peers is None else [render_peers(_read_findings(root / "docs" / "peers.json"), peers)]
    generality = _read_if_there(root / "docs" / "generality.csv")
    more += [] if generality is None else [render_generality(generality)]
    pages["docs/results.md"] = render_results(findings, table, figures, *more)
    return [name for name, text in pages.items() if update_marked_block(root / name, text)]


def _read_findings(path: Path) -> list[Finding]:
    return [Finding(**values) for values in read_json(path)["findings"]]


def _read_if_there(path: Path) -> pd.DataFrame | None:
    return read_table(path) if path.exists() else None


def update_marked_block(path: Path | str, text: str, name: str = "results") -> bool:
    """Rewrites what stands between `<!-- name:begin -->` and `<!-- name:end -->` in a file; whether it changed."""
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


def describe_setting(table: pd.DataFrame) -> str:
    """What was run, from the rows of the headline: prompts, temperature, guidance scale, what the intervals are."""
    first = table.iloc[0]
    timed = "" if pd.isna(first["num_timed"]) else f", {first['num_timed'] / first['num_repeats']:.0f} of them timed"
    return (
        f"{describe_prompts(first)} of the set {first['prompt_set']}{timed}, temperature {first['temperature']:g}, "
        f"guidance scale {first['cfg_scale']:g}; [low, high] are 95 % intervals. Speed-ups are those of the machine "
        "that made this run."
    )


def _html_finding(finding: Finding) -> str:
    question, answer, details = map(html.escape, (finding.question, finding.answer, finding.details))
    return f"<h2>{question}</h2>\n<p><b>{answer}</b> {details}</p>"


def _html_row(cells: Sequence[str], tag: str = "td") -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _render_table(table: pd.DataFrame, columns: Sequence[str], without_interval: Sequence[str] = ()) -> str:
    """A Markdown table."""
    return _markdown_table(_table_cells(table, columns, without_interval))


def _markdown_table(cells: Sequence[Sequence[str]]) -> str:
    titles, *rows = cells
    lines = [titles, ["---", *["---:"] * (len(titles) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _table_cells(table: pd.DataFrame, columns: Sequence[str], without_interval: Sequence[str] = ()) -> list[list[str]]:
    """Titles, then rows of texts, columns in the order of METRICS; what no row has is left out."""
    shown = [name for name in columns if name in table and table[name].notna().any()]
    metrics = [metric for metric in METRICS if metric.column in shown]
    rows = [
        [row["label"], *(_cell(row, metric, metric.column in without_interval) for metric in metrics)]
        for _, row in table.iterrows()
    ]
    return [["method", *(metric.title for metric in metrics)], *rows]


def _cell(row: pd.Series, metric: Metric, is_plain: bool = False) -> str:
    """A value with its interval; where the total variation is not known, its upper bound, the substitutions' share."""
    name, bound = metric.column, ""
    if name == "tv_mean" and pd.isna(row["tv_mean"]) and not pd.isna(row["substitution_rate"]):
        name, bound = "substitution_rate", "≤ "
    if pd.isna(row[name]):
        return EMPTY
    text = with_interval(row, name, f".{metric.digits}f", metric.factor)
    return bound + (text.partition(" ")[0] if is_plain or name in PLAIN else text)


def _wrap(text: str, indent: str = "") -> str:
    return textwrap.fill(text, LINE, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
