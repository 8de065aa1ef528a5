"""Many targets, each with the same methods at the same settings: does what a method gains carry over to other models,
and does it grow with their ambiguity?
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from lantern_pipeline.analysis.findings import Finding
from lantern_pipeline.analysis.method_labels import label_rows
from lantern_pipeline.analysis.summary import with_ends
from lantern_pipeline.analysis.targets import ROW_COLUMNS
from lantern_pipeline.metrics.intervals import bootstrap_interval, mean_with_interval, ratio_statistic
from lantern_pipeline.metrics.speed import BASELINE

TITLE = "Does it hold on other models?"
BASE = "base"  # the run's own target, from which the others differ
MASSES = ("top1", "top10")
LENGTH = "mean_accepted_length"
LEVEL = 0.05
COLUMNS = ("target", "differs", *with_ends(*MASSES), *ROW_COLUMNS, *with_ends("gain"), "gain_over")


def describe_changes(changes: Mapping[str, Any]) -> str:
    """What a variant changes in the config, but for files: "tokenizer.grid 12"."""
    parts = [
        f"{section}.{key} {str(value).lower() if isinstance(value, bool) else value}"
        for section, keys in changes.items()
        for key, value in keys.items()
        if key != "checkpoint"
    ]
    return ", ".join(parts)


def measure_masses(ambiguity: pd.DataFrame, cfg_scale: float, options: Mapping[str, int]) -> dict[str, float]:
    """Mean probability of the best token and of the best ten, guided as decoding is, with intervals over images."""
    rows = ambiguity[np.isclose(ambiguity["cfg_scale"], cfg_scale)]
    by_image = rows.groupby("image")[list(MASSES)].mean()
    return {key: value for name in MASSES for key, value in mean_with_interval(name, by_image[name], **options).items()}


def measure_gains(rows: pd.DataFrame, images: pd.DataFrame, options: Mapping[str, int]) -> pd.DataFrame:
    """Tokens per forward of each relaxed method by those of the exact one on the same drafts and tree, "gain" with its
    ends, and the other's id, `gain_over`; a row per row of a target's table, empty where there is no such pair.
    """
    forwards = images.pivot(index="prompt_id", columns="method_id", values="target_forwards")
    is_exact = rows["relaxation"] == "none"
    found = []
    for _, row in rows.iterrows():
        same = rows[is_exact & (rows["drafts"] == row["drafts"]) & (rows["tree"] == row["tree"])]
        if row["relaxation"] == "none" or row["method_id"] == BASELINE or same.empty:
            found.append({})
            continue
        exact = same["method_id"].iloc[0]
        pair = forwards[exact].to_numpy(), forwards[row["method_id"]].to_numpy()
        low, high = bootstrap_interval(ratio_statistic, *pair, **options)
        found.append({"gain": pair[0].sum() / pair[1].sum(), "gain_low": low, "gain_high": high, "gain_over": exact})
    return pd.DataFrame(found, columns=[*with_ends("gain"), "gain_over"], index=rows.index)


def judge_generality(table: pd.DataFrame) -> list[Finding]:
    """The verdict, from a table of COLUMNS with a column `label`: whether gains carry over, whether they grow with
    ambiguity, and whether the exact methods' tokens per forward do.
    """
    names = table.drop_duplicates("method_id").set_index("method_id")
    relaxed = [method for method in names.index if names.loc[method, "relaxation"] not in ("none", None)]
    relaxed = [method for method in relaxed if table.loc[table["method_id"] == method, "gain"].notna().any()]
    exact = [method for method in names.index if names.loc[method, "relaxation"] == "none" and method != BASELINE]
    carried = [_carries_over(table[table["method_id"] == method]) for method in relaxed]
    grown = [_trend(table[table["method_id"] == method], "gain") for method in relaxed]
    steady = [_trend(table[table["method_id"] == method], LENGTH) for method in exact]
    how = (
        "Ambiguity is one minus the guided target's mean probability of its ten best tokens on held-out images; in "
        "brackets the least and the most ambiguous target. "
        f"Kendall's tau over {table['target'].nunique()} targets; of a p below {LEVEL:g} it is said that it grows or "
        f"falls. So few targets show strong trends only, and each differs from {BASE} in more than its ambiguity."
    )
    cost = "; ".join(_cost(table[table["method_id"] == method]) for method in relaxed)
    return [
        Finding(
            "Does the gain of relaxing carry over?",
            f"{'; '.join(carried)}.",
            "Gain: tokens per forward by those of the exact method on the same drafts and tree; it carries over where "
            f"its 95 % interval lies above 1, and is unlike {BASE}'s where the two intervals do not overlap. What it "
            f"costs, over all targets: {cost}.",
        ),
        Finding("Does it grow with ambiguity?", f"{'; '.join(grown)}.", how),
        Finding("Do the exact methods' tokens per forward?", f"{'; '.join(steady)}."),
    ]


def speed_cells(table: pd.DataFrame) -> list[list[str]]:
    """Titles, then a row per target: what differs, how ambiguous it is, tokens per forward of every method."""
    methods = [method for method in table["method_id"].unique() if method != BASELINE]
    labels = table.drop_duplicates("method_id").set_index("method_id")["label"]
    cells = [["target", "what differs", "cross-entropy", "top-1", "top-10", *(labels[method] for method in methods)]]
    for target, rows in table.groupby("target", sort=False):
        first, by_method = rows.iloc[0], rows.set_index("method_id")
        values = [f"{first['target_cross_entropy']:.2f}", *(f"{first[name]:.2f}" for name in MASSES)]
        lengths = [_interval(by_method.loc[method], LENGTH, ".2f") for method in methods]
        cells.append([str(target), "-" if pd.isna(first["differs"]) else first["differs"], *values, *lengths])
    return cells


def cost_cells(table: pd.DataFrame) -> list[list[str]]:
    """Titles, then a row per target: of every relaxed method the gain, the NLL that it adds, its total variation."""
    relaxed = table[table["gain"].notna()]
    labels = relaxed.drop_duplicates("method_id").set_index("method_id")["label"]
    kinds = {"gain": ".2f", "nll_change": "+.2f", "tv_mean": ".3f"}
    words = {"gain": "gain", "nll_change": "NLL added", "tv_mean": "TV"}
    baseline = table[table["method_id"] == BASELINE].set_index("target")
    cells = [["target", "NLL", *(f"{label}: {words[kind]}" for label in labels for kind in kinds)]]
    for target, rows in relaxed.groupby("target", sort=False):
        by_method = rows.set_index("method_id")
        values = [_interval(by_method.loc[m], kind, form) for m in labels.index for kind, form in kinds.items()]
        cells.append([str(target), f"{baseline.loc[target, 'nll']:.2f}", *values])
    return cells


def with_labels(table: pd.DataFrame) -> pd.DataFrame:
    """Adds the column `label`, the same for a method on every target."""
    labels = table.drop_duplicates("method_id").set_index("method_id")
    return table.assign(label=table["method_id"].map(label_rows(labels)))


def _interval(row: pd.Series, name: str, form: str) -> str:
    if pd.isna(row[name]):
        return "-"
    low, high = (format(row[f"{name}_{end}"], form) for end in ("low", "high"))
    return f"{row[name]:{form}} [{low}, {high}]"


def _carries_over(rows: pd.DataFrame) -> str:
    is_gain, base = rows["gain_low"] > 1, rows[rows["target"] == BASE].iloc[0]
    others = rows[rows["target"] != BASE]
    differ = others[(others["gain_low"] > base["gain_high"]) | (others["gain_high"] < base["gain_low"])]
    text = f"{rows['label'].iloc[0]}: on {is_gain.sum()} of {len(rows)} targets, {rows['gain'].min():.2f} to "
    text += f"{rows['gain'].max():.2f} times, {base['gain']:.2f} on {BASE}"
    if not differ.empty:
        text += f" (unlike it: {', '.join(f'{row.target} {row.gain:.2f}' for row in differ.itertuples())})"
    return text


def _trend(rows: pd.DataFrame, name: str) -> str:
    """Whether a measure grows with ambiguity over the targets, and from the least to the most ambiguous of them."""
    from scipy.stats import kendalltau  # most of a second

    label = rows["label"].iloc[0]
    if rows[name].nunique() < 2:
        return f"{label}: the same on all"
    tau, p = kendalltau(1 - rows["top10"], rows[name])
    word = "not told" if not p < LEVEL else "grows" if tau > 0 else "falls"
    least, most = (rows.loc[place] for place in (rows["top10"].idxmax(), rows["top10"].idxmin()))
    is_apart = least[f"{name}_high"] < most[f"{name}_low"] or most[f"{name}_high"] < least[f"{name}_low"]
    first, last = (f"{row[name]:.2f} on {row['target']}" for row in (least, most))
    ends = f"{first}, {last}" + ("" if is_apart else ", not told apart")
    return f"{label}: {word} (tau {tau:+.2f}, p {p:.2g}; {ends})"


def _cost(rows: pd.DataFrame) -> str:
    parts = [f"NLL {rows['nll_change'].min():+.2f} to {rows['nll_change'].max():+.2f}"]
    if rows["tv_mean"].notna().any():
        parts.append(f"total variation {rows['tv_mean'].min():.3f} to {rows['tv_mean'].max():.3f}")
    return f"{rows['label'].iloc[0]} {', '.join(parts)}"
