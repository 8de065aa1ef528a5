"""Two targets side by side: this run's rows, and stored ones of another run, whose target was trained for minutes.

Does what methods are found to do hold on a better target?
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from lantern_pipeline.analysis.comparisons import INTERVAL
from lantern_pipeline.analysis.method_labels import label_rows
from lantern_pipeline.analysis.summary import METHOD_PARTS, select_headline, with_ends
from lantern_pipeline.metrics.registry import METRICS, Metric
from lantern_pipeline.metrics.speed import BASELINE

QUESTION = "Do the findings hold on a better target?"
# What readers see of both targets.
SHOWN = [metric for metric in METRICS if metric.column in ("mean_accepted_length", "nll", "prompt_accuracy", "tv_mean")]
MEASURED = (*(metric.column for metric in SHOWN), "nll_change", "prompt_accuracy_change", "substitution_rate")
ROW_COLUMNS = (
    *("prompt_set", "temperature", "cfg_scale", "num_images", "num_repeats", "target_cross_entropy"),
    *(*METHOD_PARTS, "method_id", *with_ends(*MEASURED), "made_by"),
)
Pair = tuple[pd.Series, pd.Series]  # a method's rows, on the one target and on the other


def target_rows(summary: pd.DataFrame, paired: pd.DataFrame, settings: Mapping[str, Any], made_by: str) -> pd.DataFrame:
    """Selects what a run says of its target: ROW_COLUMNS of the headline's rows.

    `summary` and `paired` are the run's tables, `settings` config section `metrics`, `made_by` names code and machine.
    """
    place = ["method_id", "prompt_set", "temperature", "repeat"]
    changes = paired.loc[paired["metric"] == "nll", [*place, *INTERVAL]]
    changes = changes.rename(columns=dict(zip(INTERVAL, with_ends("nll_change"), strict=True)))
    rows = select_headline(summary, settings).merge(changes, on=place, how="left", validate="one_to_one")
    return rows.assign(made_by=made_by).reindex(columns=list(ROW_COLUMNS))


def put_side_by_side(stored: pd.DataFrame, own: pd.DataFrame) -> pd.DataFrame:
    """Joins two tables of `target_rows`: the rows of methods that both have, in this run's order, with columns `target`
    (stored or own) and `label`.
    """
    tables = {"stored": stored.set_axis(_parts(stored)), "own": own.set_axis(_parts(own))}
    shared = [parts for parts in tables["own"].index if parts in tables["stored"].index]
    rows = [table.loc[shared].reset_index(drop=True).assign(target=name) for name, table in tables.items()]
    table = pd.concat([part.assign(label=label_rows(part)) for part in rows], ignore_index=True)
    return table[["target", "label", *ROW_COLUMNS]]


def judge_targets(table: pd.DataFrame, steps: pd.DataFrame | None = None) -> tuple[str, list[str]]:
    """Answers QUESTION from a table of `put_side_by_side`: (answer, facts behind it). `steps` is an ablation over
    targets of one training.
    """
    baseline, *pairs = _pairs(table)
    relaxed = [pair for pair in pairs if pair[1]["relaxation"] != "none"]
    lengths = _compare_lengths(pairs)
    costs = _compare(relaxed, "nll_change", ("less", "as much", "more"), "{:+.2f} to {:+.2f}".format)
    counts = ", ".join(f"{len(methods)} {word}" for word, methods in lengths.items())
    details = [_describe_targets(*baseline), f"Tokens per forward, {_list(lengths)}"]
    if costs:
        details.append(f"What relaxed methods add to the NLL of autoregressive decoding, {_list(costs)}")
    if relaxed and not pd.isna(baseline[1]["prompt_accuracy"]):
        losers = "; on this run's: ".join(_name_losers(rows) for rows in zip(*relaxed, strict=True))
        details.append(f"Relaxed methods that lose prompt accuracy on the stored target: {losers}.")
    if steps is not None:
        details.append(_describe_steps(steps))
    answer = f"Tokens per forward on this run's target against a stored one's, of {len(pairs)} methods: {counts}."
    return answer, details


def side_by_side_cells(table: pd.DataFrame, write: Callable[[pd.Series, Metric], str]) -> list[list[str]]:
    """Titles, then the texts of a row per method: every measure on the stored target, then on this run's."""
    titles = [f"{metric.title}, {name}" for metric in SHOWN for name in ("stored", "own")]
    rows = [[pair[1]["label"], *(write(row, metric) for metric in SHOWN for row in pair)] for pair in _pairs(table)]
    return [["method", *titles], *rows]


def _parts(rows: pd.DataFrame) -> list[str]:
    """What each row's method is made of, as a text: its id may differ between configs."""
    return [str([None if pd.isna(part) else part for part in row]) for row in rows[list(METHOD_PARTS)].to_numpy(object)]


def _pairs(table: pd.DataFrame) -> list[Pair]:
    """Rows of autoregressive decoding, then of the other methods."""
    stored, own = ([row for _, row in table[table["target"] == name].iterrows()] for name in ("stored", "own"))
    return sorted(zip(stored, own, strict=True), key=lambda pair: pair[1]["method_id"] != BASELINE)


def _compare(
    pairs: Sequence[Pair], name: str, words: tuple[str, str, str], write: Callable[[float, float], str]
) -> dict[str, list[str]]:
    """Word -> methods whose interval of a measure lies lower on the second target, overlaps, or lies higher."""
    found: dict[str, list[str]] = {word: [] for word in words}
    for first, second in pairs:
        if pd.isna(first[name]) or pd.isna(second[name]):
            continue
        is_lower, is_higher = (
            second[f"{name}_high"] < first[f"{name}_low"],
            second[f"{name}_low"] > first[f"{name}_high"],
        )
        word = words[0 if is_lower else 2 if is_higher else 1]
        found[word].append(f"{second['label']} {write(first[name], second[name])}")
    return {word: methods for word, methods in found.items() if methods}


def _compare_lengths(pairs: Sequence[Pair]) -> dict[str, list[str]]:
    def write(first: float, second: float) -> str:
        return f"{100 * (second / first - 1):+z.0f} %"

    return _compare(pairs, "mean_accepted_length", ("fewer", "as many", "more"), write)


def _list(compared: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{word}: {', '.join(methods)}" for word, methods in compared.items()) + "."


def _describe_targets(stored: pd.Series, own: pd.Series) -> str:
    text = (
        f"This run's target has {own['target_cross_entropy']:.2f} nats per token on held-out images, the stored one "
        f"{stored['target_cross_entropy']:.2f}"
    )
    if not pd.isna(own["prompt_accuracy"]):
        read = " and ".join(f"{100 * row['prompt_accuracy']:.1f} %" for row in (own, stored))
        text += f"; autoregressive decoding draws {read} of the attributes asked for"
    overlap = "Two rows differ where their 95 % intervals do not overlap"
    return f"{text}. The stored rows are results of another run: {stored['made_by']}. {overlap}."


def _name_losers(rows: Sequence[pd.Series]) -> str:
    """Methods whose prompt accuracy falls below that of autoregressive decoding by more than chance."""
    name = "prompt_accuracy_change"
    lost = [row for row in rows if row[f"{name}_high"] < 0]
    return ", ".join(f"{row['label']} {100 * row[name]:+.1f} points" for row in lost) or "none"


def _describe_steps(steps: pd.DataFrame) -> str:
    """What becomes of every method's length from the first to the last of several targets of one training."""
    rows = steps.assign(label=label_rows(steps)).sort_values("target_cross_entropy", ascending=False, kind="stable")
    entropies = rows["target_cross_entropy"].drop_duplicates()
    lines = rows[rows["method_id"] != BASELINE].groupby("method_id", sort=False)
    ends = [(line.iloc[0], line.iloc[-1]) for _, line in lines]
    return (
        f"Over {len(entropies)} targets of one training, from {entropies.iloc[0]:.2f} to {entropies.iloc[-1]:.2f} nats "
        f"per token, tokens per forward, {_list(_compare_lengths(ends))}"
    )
