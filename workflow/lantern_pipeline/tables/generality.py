"""Tokens per forward pass of each method on many targets, and whether they grow with the ambiguity of a target.

A target is *ambiguous* if it is unsure of the next token: ambiguity = 1 - top10, where top1 and top10 are the total
probability of its most probable token and of its ten most probable ones, at temperature 1 without top-k and top-p
filters. All targets are decoded by the same methods with the same settings. The *gain* of a relaxed method is its
tokens per forward pass divided by those of the exact method with the same drafts and tree.

`changes` are the config keys of a target that differ from the run itself: section -> key -> value. `options` are the
arguments num_resamples and seed of the bootstrap.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from lantern_models.sizes import Sides, shape_of
from lantern_pipeline.measure.columns import with_ends
from lantern_pipeline.measure.intervals import bootstrap_interval, mean_with_interval, ratio_statistic
from lantern_pipeline.measure.speed.speedups import BASELINE
from lantern_pipeline.tables.comparisons import INTERVAL
from lantern_pipeline.tables.method_labels import label_method
from lantern_pipeline.tables.summary import METHOD_PARTS, MetricsSection, select_headline

BASE = "base"  # the target of the run itself, from which the others differ
MASSES = ("top1", "top10")
LENGTH = "tokens_per_forward"
MEASURED = (LENGTH, "nll", "prompt_accuracy", "tv_mean", "nll_change", "prompt_accuracy_change", "substitution_rate")
COLUMNS = (
    *("target", "grid_side", "differs", *with_ends(*MASSES)),
    *("prompt_set", "temperature", "cfg_scale", "num_images", "num_repeats", "target_cross_entropy"),
    *(*METHOD_PARTS, "method_id", *with_ends(*MEASURED), "made_by", *with_ends("gain"), "gain_over"),
)


def target_rows(
    summary: pd.DataFrame, paired: pd.DataFrame, images: pd.DataFrame, settings: MetricsSection, seed: int
) -> pd.DataFrame:
    """Return the main results of one target, with columns nll_change and gain added and their intervals.

    Column nll_change, the NLL minus that of autoregressive decoding, is from `paired` (`build_paired`).
    """
    place = ["method_id", "prompt_set", "temperature", "repeat"]
    changes = paired.loc[paired["metric"] == "nll", [*place, *INTERVAL]]
    changes = changes.rename(columns=dict(zip(INTERVAL, with_ends("nll_change"), strict=True)))
    rows = select_headline(summary, settings).merge(changes, on=place, how="left", validate="one_to_one")
    return rows.join(measure_gains(rows, images, {"num_resamples": settings["bootstrap_resamples"], "seed": seed}))


def describe_changes(changes: Mapping[str, Mapping[str, object]]) -> str:
    """Write in which config keys a target differs from the target of the run itself: "tokenizer.grid 12"."""
    return ", ".join(
        f"{section}.{key} {str(value).lower() if isinstance(value, bool) else value}"
        for section, keys in changes.items()
        for key, value in keys.items()
        # A checkpoint names a file, which tells readers nothing.
        if key != "checkpoint"
    )


def find_grid_side(changes: Mapping[str, Mapping[str, Any]], grid: Sides) -> int:
    """Return the number of codes along a target's height. `grid` is that of the run itself."""
    return shape_of(changes.get("tokenizer", {}).get("grid", grid))[0]


def measure_masses(ambiguity: pd.DataFrame, cfg_scale: float, options: Mapping[str, int]) -> dict[str, float]:
    """Return the mean top1 and top10 at a guidance scale, with 95 % intervals over images.

    `ambiguity` has one row per guidance scale, image and position, from `measure_ambiguity`.
    """
    rows = ambiguity[np.isclose(ambiguity["cfg_scale"], cfg_scale)]
    # Positions of an image depend on each other. Images are the independent samples.
    by_image = rows.groupby("image")[list(MASSES)].mean()
    return {key: value for name in MASSES for key, value in mean_with_interval(name, by_image[name], **options).items()}


def measure_gains(rows: pd.DataFrame, images: pd.DataFrame, options: Mapping[str, int]) -> pd.DataFrame:
    """Return columns gain, gain_low, gain_high and gain_over, the id of the exact method, for the rows of `rows`.

    Cells are empty if the method is exact, or if no exact method has the same drafts and tree. `images` has one row per
    method and prompt.
    """
    # Images of a target have equally many tokens, so that lengths differ by forward passes only:
    # gain = forwards of the exact method / forwards of the relaxed one.
    forwards = images.pivot(index="prompt_id", columns="method_id", values="target_forwards")
    is_exact = rows["is_exact"].eq(True)
    found = []
    for number, row in rows.iterrows():
        same = rows[is_exact & (rows["drafts"] == row["drafts"]) & (rows["tree"] == row["tree"])]
        if is_exact[number] or row["method_id"] == BASELINE or same.empty:
            found.append({})
            continue
        exact = same["method_id"].iloc[0]
        pair = forwards[exact].to_numpy(), forwards[row["method_id"]].to_numpy()
        low, high = bootstrap_interval(ratio_statistic, *pair, **options)
        found.append({"gain": pair[0].sum() / pair[1].sum(), "gain_low": low, "gain_high": high, "gain_over": exact})
    return pd.DataFrame(found, columns=[*with_ends("gain"), "gain_over"], index=rows.index)


def find_generality_claims(table: pd.DataFrame) -> dict[str, object]:
    """Return one claim per method: how its gain varies over targets, and whether it grows with their ambiguity.

    The claim of a method without a gain is about its tokens per forward pass. Numbers that are nan are left out.
    """
    rows = table[table["method_id"] != BASELINE]
    return {str(method_id): _claims_of_method(part) for method_id, part in rows.groupby("method_id", sort=False)}


def _claims_of_method(rows: pd.DataFrame) -> dict[str, object]:
    from scipy.stats import kendalltau  # imported here, because the import takes most of a second

    name = "gain" if rows["gain"].notna().any() else LENGTH
    base = rows[rows["target"] == BASE].iloc[0]
    # A target is unlike the base if the two intervals do not overlap.
    is_apart = (rows[f"{name}_low"] > base[f"{name}_high"]) | (rows[f"{name}_high"] < base[f"{name}_low"])
    # Trend with ambiguity, by rank: no line through the targets is assumed.
    tau, p = kendalltau(1 - rows["top10"], rows[name])
    ends = {
        f"{column}_{end}": float(getattr(rows[column], end)())
        for column in (name, "nll_change", "tv_mean")
        for end in ("min", "max")
    }
    numbers = {"base": float(base[name]), "tau": float(tau), "p": float(p), **ends}
    return {
        "label": label_method(rows.iloc[0]),
        "measure": name,  # also the stem of the keys <measure>_min and <measure>_max
        "num_targets": len(rows),
        "num_above_one": int((rows[f"{name}_low"] > 1).sum()),
        "unlike_base": dict(zip(rows.loc[is_apart, "target"], rows.loc[is_apart, name], strict=True)),
        **{key: value for key, value in numbers.items() if not np.isnan(value)},
    }
