"""Claims: the numbers behind the conclusions of a run, computed from its tables.

Of several methods, the *longest* has the most tokens per forward pass of the target, and the *fastest* has the highest
speed-up. Tokens per forward pass are the same on other machines, but speed-ups are not.

In this file, `rows` are the run's main results with one row per method (`select_headline`), and the *numbers* of a
method are its columns CLAIM_COLUMNS. `options` are the arguments num_resamples and seed of the bootstrap.

Sentences in README.md and docs/results.md that rest on claims are written by hand. Read them again when a run is
published.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from lantern.registry import drafts_of
from lantern_pipeline.measure.columns import with_ends
from lantern_pipeline.measure.registry import ROUNDING
from lantern_pipeline.measure.repeats import POOLED
from lantern_pipeline.measure.speed.speedups import BASELINE
from lantern_pipeline.tables.comparisons import NUM_LENGTHS, compare_at_equal_length
from lantern_pipeline.tables.method_rows import method_of
from lantern_pipeline.tables.summary import MetricsSection, select_headline

ACCURACY_TOLERANCE = 0.02  # prompt accuracy that a relaxed method may lose and still be ranked
IDLE = 0.1  # a machine counts as idle if at most this number of cores is busy
# All n times lie on one side of the true median with probability 2 * 0.5**n: 3 % for 6 prompts, 6 % for 5.
MIN_TIMED = 6  # timed prompts; with fewer, the measured range misses the true median too often
LEVEL = 0.05  # significance level of all tests of the output distribution together
# Acceptances of the papers and of their code, by column `rule` of total_variation/curves.csv.
PUBLISHED_RULES = ("sampled_paper", "top_children", "top_official")
# Columns of the table of results that a claim about one method contains.
CLAIM_COLUMNS = (
    *("method_id", "label"),
    *with_ends(
        "tokens_per_forward", "relative_step_cost", "speedup", "nll", "prompt_accuracy", "prompt_accuracy_change"
    ),
    *(*with_ends("tv_mean", "substitution_rate"), "num_timed", "num_repeats", "tokens_equal_autoregressive"),
)
# Acceptance -> acceptances that it is compared with, with the same tree and drafts.
OF_ACCEPTANCE = {
    "annealed": ("constant", "reversed"),
    "group": ("additive", "multiplicative"),
    "mixing": ("ensemble", "additive", "multiplicative", "constant"),
    "multiplicative": ("random multiplicative", "constant"),
    "additive": ("random additive",),
}


def find_claims(
    summary: pd.DataFrame,
    curves: pd.DataFrame,
    images: pd.DataFrame,
    reports: Mapping[str, Mapping[str, Any]],
    *,
    settings: MetricsSection,
    seed: int,
) -> dict[str, object]:
    """Return all claims of a run, except those about methods that did not run: name -> numbers, as JSON values.

    Args:
        summary: from `build_summary`.
        curves: total_variation/curves.csv, with one row per acceptance and delta.
        images: one row per method and image.
        reports: name of a model -> its training report.
    """
    rows = select_headline(summary, settings)
    options = {"num_resamples": settings["bootstrap_resamples"], "seed": seed}
    # Only the first repeat, since curves at equal length are paired by prompt: one image per method and prompt.
    place = {name: rows[name].iloc[0] for name in ("prompt_set", "temperature")} | {"repeat": images["repeat"].iloc[0]}
    images = images[(images[list(place)] == pd.Series(place)).all(axis=1)]
    equal_length = {}
    for first, others in OF_ACCEPTANCE.items():
        equal_length |= _compare_acceptance(rows, images, first, others, options)
    claims = {
        "setting": describe_setting(rows),
        **claims_of_rows(rows),
        "tokens": _count_equal_rows(summary),
        "delta": _bound(curves),
        "equal_length": equal_length,
        "models": _numbers_of_models(reports),
    }
    return {name: found for name, found in claims.items() if found}


def claims_of_rows(rows: pd.DataFrame) -> dict[str, object]:
    """Return the claims that follow from the main results: which methods are exact, and which are the best.

    Relaxed methods that lose more than ACCURACY_TOLERANCE of prompt accuracy are never called the longest or fastest.
    """
    baseline = rows[rows["method_id"] == BASELINE].iloc[0]
    # `eq(True)`: real images leave cells empty, so the dtype is object, for which `~` is no logical not.
    lossless, is_relaxed = rows[_is_lossless(rows)], ~rows["is_exact"].eq(True)
    # 1e-9: a loss of exactly the tolerance, as 0.98 - 0.96 in floats, is still allowed.
    loses = baseline["prompt_accuracy"] - rows["prompt_accuracy"] > ACCURACY_TOLERANCE + 1e-9
    relaxed = rows[is_relaxed & ~loses]
    # Slow only if the whole interval is below 1, and enough prompts were timed for an interval to mean something.
    is_slow = is_relaxed & (rows["speedup_high"] < 1) & (num_timed(rows) >= MIN_TIMED)
    return {
        "baseline": _numbers_of_row(baseline),
        "exact": _longest(lossless),
        "exact_fastest": _fastest(lossless),
        "exact_without_draft_model": _longest(lossless[~needs_draft_model(lossless)]),
        "relaxed": _longest(relaxed),
        "relaxed_fastest": _fastest(relaxed),
        "relaxed_and_slow": list(rows.loc[is_slow, "label"]),
        "distribution": _judge_distributions(rows),
        "frontier": _frontier(rows),
    }


def describe_setting(rows: pd.DataFrame) -> dict[str, str]:
    """Describe how the main results were measured, as name -> short text for captions of figures and tables.

    `busy_elsewhere` (cores that other work kept busy) and `machine` are missing if no method was timed.
    """
    row = rows.set_index("method_id").loc[BASELINE]
    # Column num_images counts a prompt once per repeat.
    is_timed, num_repeats = not pd.isna(row["speedup"]), int(row["num_repeats"])
    prompts = f"{int(row['num_images']) // num_repeats} prompts"
    timing = {}
    if is_timed and "machine" in row:
        timing = {"busy_elsewhere": f"{row['busy_elsewhere']:.2f}", "machine": row["machine"]}
    return {
        **timing,
        "prompt_set": str(row["prompt_set"]),
        "temperature": f"{row['temperature']:g}",
        "cfg_scale": f"{row['cfg_scale']:g}",
        "prompts": prompts if num_repeats == 1 else f"{prompts} in {num_repeats} repeats",
        "num_methods": str(len(rows)),
        "num_timed": f"{num_timed(row):.0f}" if is_timed else "no",
        "autoregressive_latency_ms": f"{1000 * row['latency_s']:.0f}" if is_timed else "unknown",
    }


def describe_run(setting: Mapping[str, str]) -> str:
    """Write two sentences for the text above a table, from the result of `describe_setting`."""
    timed = "none" if setting["num_timed"] == "no" else setting["num_timed"]
    # Without timing there is no load of the machine to tell.
    machine, busy = setting.get("machine", "the machine that made this run"), setting.get("busy_elsewhere", "0")
    others = f", and it was not idle: other work kept {busy} cores busy meanwhile" if float(busy) > IDLE else ""
    return (
        f"{setting['prompts']} of the set {setting['prompt_set']}, {timed} of them timed, temperature "
        f"{setting['temperature']}, guidance scale {setting['cfg_scale']}; [low, high] are 95 % intervals. Step costs "
        f"and speed-ups are those of {machine}{others}; tokens per forward and quality carry over to other machines."
    )


def num_timed(rows: pd.DataFrame | Mapping[str, Any]) -> Any:
    """Return on how many prompts the method of each row was timed. `rows` may be a single row."""
    # Column num_timed counts a prompt once per repeat.
    return rows["num_timed"] / rows["num_repeats"]


def needs_draft_model(rows: pd.DataFrame) -> pd.Series:
    """Return whether each method needs a draft model or heads, with the index of `rows`."""
    # pandas reads the empty cell of autoregressive decoding as nan
    found = [pd.notna(name) and drafts_of(name).is_trained for name in rows["drafts"]]
    return pd.Series(found, rows.index, dtype=bool)


def _is_lossless(rows: pd.DataFrame) -> pd.Series:
    # A proof of exactness is not enough: tokens that must be equal must have been so in this run, too.
    is_equal = (rows["tokens_equal_autoregressive"] == 1) | ~_must_be_equal(rows)
    return rows["is_exact"].eq(True) & is_equal & (rows["method_id"] != BASELINE)


def _must_be_equal(rows: pd.DataFrame) -> pd.Series:
    # Must a method emit the tokens of autoregressive decoding, not only its distribution? A forward pass over several
    # nodes rounds differently from one over a single node. The margin of a near-tie is that of float32 rounding. In
    # bfloat16, tokens may differ at larger margins, although nothing is wrong.
    return _keeps_tokens(rows) & (rows["dtype"] == "float32")


def add_distance(rows: pd.DataFrame) -> pd.DataFrame:
    """Add column `distance`, a method's total variation from the target, and column `has_draft_model`.

    If the total variation is unknown, `distance` is its upper bound: the share of substitutions.
    """
    # Coupling inequality: TV <= P(emitted token != target's sample). The baseline samples the target itself: 0.
    distance = rows["tv_mean"].fillna(rows["substitution_rate"]).mask(rows["method_id"] == BASELINE, 0.0)
    distance = distance.mask(distance < ROUNDING, 0.0)
    return rows.assign(distance=distance, has_draft_model=needs_draft_model(rows))


def _keeps_tokens(rows: pd.DataFrame) -> pd.Series:
    # Without drafts: real images, and autoregressive decoding, which would be compared with itself.
    kept = [pd.notna(row["drafts"]) and method_of(row).keeps_tokens(row["temperature"]) for _, row in rows.iterrows()]
    return pd.Series(kept, rows.index, dtype=bool)


def _longest(rows: pd.DataFrame) -> dict[str, object] | None:
    return None if rows.empty else _numbers_of_row(rows.loc[rows["tokens_per_forward"].idxmax()])


def _fastest(rows: pd.DataFrame) -> dict[str, object] | None:
    timed = rows[rows["speedup"].notna()]
    return None if timed.empty else _numbers_of_row(timed.loc[timed["speedup"].idxmax()])


def _numbers_of_row(row: pd.Series) -> dict[str, object]:
    cells = ((name, row.get(name, np.nan)) for name in CLAIM_COLUMNS)
    return {name: None if pd.isna(cell) else cell if isinstance(cell, str) else float(cell) for name, cell in cells}


def _count_equal_rows(summary: pd.DataFrame) -> dict[str, float]:
    """Count the rows whose tokens must equal those of autoregressive decoding, and the rows in which they do."""
    # Pooled rows would count the same images twice.
    kept = summary[summary["repeat"] != POOLED]
    kept = kept[_keeps_tokens(kept)]
    # Rows in float32, and the others.
    must, rounded = (kept[(kept["dtype"] == "float32") == is_full] for is_full in (True, False))
    counts: dict[str, float] = {
        "num_rows": len(must),
        "num_equal": int((must["tokens_equal_autoregressive"] == 1).sum()),
        "num_near_ties": int(must["num_near_ties"].sum()),  # images that differ, but at a near-tie
    }
    if len(rounded):
        # Nothing is demanded of bfloat16 rows, so only their mean share of equal images is stated.
        counts["share_equal_bfloat16"] = float(rounded["tokens_equal_autoregressive"].mean())
    return counts


def _judge_distributions(rows: pd.DataFrame) -> dict[str, object]:
    """Return the claim `distribution`: whether tests confirm that methods have the target's output distribution.

    The test of whole images compares a method's images with the target's distribution of images. Its p-value is column
    law_p. An exact method is *refuted* by this test, by a total variation at the nodes above rounding, or by tokens
    that differ although they must be equal. For relaxed methods, the claim counts how many the test tells from the
    target.
    """
    others = rows[rows["method_id"] != BASELINE]
    tested, is_claimed = others["law_p"].notna(), others["is_exact"].eq(True)
    if not tested.any():
        return {}
    # Bonferroni: with equal parts of LEVEL, the probability of any false alarm is at most LEVEL.
    level = LEVEL / tested.sum()
    is_refuted = (others["law_p"] < level) | (others["tv_mean"] > ROUNDING)
    is_refuted |= _must_be_equal(others) & (others["tokens_equal_autoregressive"] < 1)
    refuted, open_ = others[is_claimed & is_refuted], others[is_claimed & ~is_refuted & ~tested]
    relaxed = others[tested & ~is_claimed]
    alike = relaxed[relaxed["law_p"] >= level]  # no difference was detected
    return {
        # Methods that a proof calls exact, and those of them that passed the test of images and are not refuted.
        "num_claims": int(is_claimed.sum()),
        "num_confirmed": int(is_claimed.sum()) - len(refuted) - len(open_),
        # Label -> p-value, here and in `not_told`. None if not this test refuted the method, but another one.
        "refuted": {row["label"]: row["law_p"] if row["law_p"] < level else None for _, row in refuted.iterrows()},
        # Not refuted, but the test of whole images left them out.
        "not_measured": list(open_["label"]),
        "num_tests": int(tested.sum()),
        "level": float(level),
        "baseline_p": float(rows.loc[rows["method_id"] == BASELINE, "law_p"].iloc[0]),
        "num_relaxed": len(relaxed),
        "num_told": len(relaxed) - len(alike),
        "not_told": dict(zip(alike["label"], alike["law_p"], strict=True)),
    }


def _frontier(rows: pd.DataFrame) -> dict[str, object]:
    """Return the claim `frontier`: the Pareto frontier of tokens per forward pass and distance (`add_distance`).

    A method is on the frontier if every other method that is as close or closer to the target emits fewer tokens per
    forward pass. Frontiers begin with the longest method. The claim is empty if fewer than two methods besides
    autoregressive decoding have a distance.
    """
    placed = add_distance(rows)
    known = placed[placed["distance"].notna()]
    if (known["method_id"] != BASELINE).sum() < 2:
        return {}
    columns, best = ["label", "tokens_per_forward", "distance"], {}
    for name, part in {"all": known, "without_draft_model": known[~known["has_draft_model"]]}.items():
        # From the longest method on, each method must be closer than all before it.
        rows = part.sort_values(["tokens_per_forward", "distance"], ascending=[False, True], kind="stable")
        closest_before = rows["distance"].cummin().shift(fill_value=float("inf"))
        best[name] = rows.loc[rows["distance"] < closest_before, columns].to_dict("records")
    return {**best, "num_rows": len(known), "not_measured": list(placed.loc[placed["distance"].isna(), "label"])}


def _bound(curves: pd.DataFrame) -> dict[str, object]:
    """Return the claim `delta`: whether the parameter delta of an acceptance bounds its total variation at every node.

    One delta near 0.1 suffices to refute published acceptances. Lantern's `bounded` must keep every measured delta.
    """
    if curves.empty:  # the run has no draft model
        return {}
    # The smaller of two deltas that are equally near.
    delta = min(sorted(curves["delta"].unique()), key=lambda value: abs(value - 0.1))
    at = curves[curves["delta"] == delta].set_index("rule").loc[list(PUBLISHED_RULES)]
    ours = curves[curves["rule"] == "bounded"]
    return {
        "delta": float(delta),
        "published": {rule: {name: float(row[name]) for name in with_ends("tv_mean")} for rule, row in at.iterrows()},
        "published_is_above": bool((at["tv_share_above_delta"] > 0).any()),
        "ours_is_above": bool((ours["tv_max"] > ours["delta"] + ROUNDING).any()),
        "num_nodes": int(ours["num_nodes"].max()),
        "num_deltas": len(ours),
    }


def _compare_acceptance(
    rows: pd.DataFrame, images: pd.DataFrame, first: str, others: tuple[str, ...], options: Mapping[str, int]
) -> dict[str, object]:
    """Compare one acceptance with others by NLL and total variation, at equal tokens per forward pass.

    Only methods with the drafts and the tree of the first row with acceptance `first` are compared. Returns `first` ->
    other -> result of `compare_at_equal_length` with the mean TVs, or None if the two have no common length.
    """
    # The acceptance "weighted" has three variants, by its parameter `fall`.
    falls = rows["fall"].map({0.7: "annealed", 0.0: "constant", -0.7: "reversed"})
    rows = rows.assign(acceptance=rows["acceptance"].mask(rows["acceptance"] == "weighted", falls))
    # Random codes in place of the nearest ones are the control, and count as an acceptance of their own.
    rows["acceptance"] = rows["acceptance"].mask(rows["neighbours"] == "random", "random " + rows["acceptance"])
    asked = rows[rows["acceptance"] == first]
    if asked.empty:
        return {}
    is_same = (rows[["drafts", "tree"]] == asked[["drafts", "tree"]].iloc[0]).all(axis=1)
    rows = rows[is_same & rows["acceptance"].isin((first, *others))]
    # Acceptance -> one row per image of its methods.
    curves = dict(list(images.merge(rows[["method_id", "acceptance"]], on="method_id").groupby("acceptance")))
    found: dict[str, dict[str, float | None] | None] = {}
    # `np.interp` needs points in the order of their lengths.
    known = rows[rows["tv_mean"].notna()].sort_values("tokens_per_forward")
    for other in [other for other in others if other in curves]:
        numbers = compare_at_equal_length(curves[first], curves[other], **options)
        found[other] = None if numbers is None else {**numbers}
        if numbers:
            # The TV curves are read off at the lengths at which the NLL curves were compared.
            lengths = np.linspace(numbers["shortest"], numbers["longest"], NUM_LENGTHS)
            tvs: dict[str, float | None] = {}
            for name, kind in (("tv_first", first), ("tv_second", other)):
                curve = known[known["acceptance"] == kind]
                tv = np.interp(lengths, curve["tokens_per_forward"], curve["tv_mean"]) if len(curve) else [np.nan]
                tvs[name] = None if np.isnan(tv).any() else float(np.mean(tv))
            found[other] = {**numbers, **tvs}
    return {first: found} if found else {}


def _numbers_of_models(reports: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the claim `models`: model -> name -> the floats of its training report, with `<split>_accuracy`."""
    found = {}
    for name, report in reports.items():
        splits = {f"{key}_accuracy": part["accuracy"] for key, part in report.items() if key in ("val", "unseen")}
        # Integers are sizes and counts of steps, no results.
        found[name] = {key: value for key, value in {**report, **splits}.items() if isinstance(value, float)}
    return found
