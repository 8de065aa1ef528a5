"""Claims: the numbers behind the conclusions of a run, computed from its tables.

The claims state which methods are exact, which emit the most tokens per forward pass of the target, which are fastest,
and what this costs. Tokens per forward pass are the same on other machines, but speed-ups are not. Most claims are
about the run's main results: one row per method, at the prompt set and temperature that the config names for
conclusions (`select_headline`).

Sentences in README.md and docs/results.md that rest on these numbers are written by hand. Read them again when a run is
published.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from lantern.method_tables import drafts_of
from lantern.methods import keeps_tokens
from lantern_pipeline.measure.columns import with_ends
from lantern_pipeline.measure.registry import ROUNDING
from lantern_pipeline.measure.repeats import POOLED
from lantern_pipeline.measure.speed import BASELINE
from lantern_pipeline.tables.comparisons import NUM_LENGTHS, compare_at_equal_length
from lantern_pipeline.tables.summary import MetricsSection, select_headline

ACCURACY_TOLERANCE = 0.02  # prompt accuracy that a relaxed method may lose and still be ranked
IDLE = 0.1  # a machine counts as idle if at most this number of cores is busy
MIN_TIMED = 6  # timed prompts; with fewer, the probability that the measured range misses the true median is above 5 %
LEVEL = 0.05  # significance level of all tests of the output distribution together; each test has an equal part of it
PUBLISHED_RULES = ("sampled_paper", "top_children", "top_official")
# Columns of the table of results that a claim about one method contains.
CLAIM_COLUMNS = (
    *("method_id", "label"),
    *with_ends(
        "mean_accepted_length", "relative_step_cost", "speedup", "nll", "prompt_accuracy", "prompt_accuracy_change"
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
    """Compute all claims of a run: the numbers behind its conclusions, such as which method is fastest.

    Args:
        summary: table of results, one row per method and repeat (pair of seeds), from `build_summary`.
        curves: total variation as a function of delta, from total_variation/curves.csv.
        images: one row per method and image.
        reports: name of a model -> its training report.
        settings: keys of config section `metrics`.
        seed: random seed of the bootstrap.

    Returns:
        Name of the claim -> its numbers, as JSON values. Claims about methods that did not run are left out.
    """
    rows = select_headline(summary, settings)
    options = {"num_resamples": settings["bootstrap_resamples"], "seed": seed}
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
    """Compute the claims that follow from the main results: which methods are exact, and which are the best.

    Args:
        rows: main results of the run, one row per method, see `select_headline`.

    Returns:
        A dict with nine claims. "Longest" means with the most tokens per forward pass, "fastest" with the highest
        speed-up. Relaxed methods that lose more than ACCURACY_TOLERANCE of prompt accuracy are never chosen.

        - baseline: numbers of autoregressive decoding.
        - exact, exact_fastest: numbers of the longest and of the fastest exact method, see `_is_lossless`.
        - exact_without_draft_model: numbers of the longest exact method without a draft model.
        - relaxed, relaxed_fastest: numbers of the longest and of the fastest relaxed method.
        - relaxed_and_slow: labels of the relaxed methods for which the whole interval of the speed-up is below 1. Only
          methods that were timed on at least MIN_TIMED prompts count.
        - distribution: see `_judge_distributions`.
        - frontier: see `_frontier`.
    """
    baseline = rows[rows["method_id"] == BASELINE].iloc[0]
    lossless, is_relaxed = rows[_is_lossless(rows)], ~rows["is_exact"].eq(True)
    loses = baseline["prompt_accuracy"] - rows["prompt_accuracy"] > ACCURACY_TOLERANCE + 1e-9
    relaxed = rows[is_relaxed & ~loses]
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
    """Describe how the main results were measured, as short texts that captions of figures and tables contain.

    Args:
        rows: main results of the run, one row per method, see `select_headline`.

    Returns:
        Name -> text: number of prompts, prompt set, temperature, guidance scale, numbers of methods and of timed
        prompts, and latency of autoregressive decoding in milliseconds. If methods were timed, it also has the name of
        the machine and the number of cores that were busy with other work.
    """
    row = rows.set_index("method_id").loc[BASELINE]
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
    """Write two sentences about how the main results were measured, for the text above a table.

    Args:
        setting: result of `describe_setting`.
    """
    timed = "none" if setting["num_timed"] == "no" else setting["num_timed"]
    machine, busy = setting.get("machine", "the machine that made this run"), setting.get("busy_elsewhere", "0")
    others = f", and it was not idle: other work kept {busy} cores busy meanwhile" if float(busy) > IDLE else ""
    return (
        f"{setting['prompts']} of the set {setting['prompt_set']}, {timed} of them timed, temperature "
        f"{setting['temperature']}, guidance scale {setting['cfg_scale']}; [low, high] are 95 % intervals. Step costs "
        f"and speed-ups are those of {machine}{others}; tokens per forward and quality carry over to other machines."
    )


def num_timed(rows: pd.DataFrame | Mapping[str, Any]) -> Any:
    """Return on how many prompts the method of each row, or of one row, was timed.

    Column num_timed counts a prompt once per repeat of the run with other seeds. It is therefore divided by column
    num_repeats.

    Args:
        rows: the rows as a table, or a single row as a mapping.
    """
    return rows["num_timed"] / rows["num_repeats"]


def needs_draft_model(rows: pd.DataFrame) -> pd.Series:
    """Return whether each method needs a draft model or heads, as a series with the index of `rows`."""
    found = [drafts_of(name).is_trained for name in rows["drafts"]]
    return pd.Series(found, rows.index, dtype=bool)


def _is_lossless(rows: pd.DataFrame) -> pd.Series:
    """Return whether the method of each row is exact, bool. The row of autoregressive decoding gets False.

    A method is exact if a proof says so (column is_exact). If its tokens must also equal those of autoregressive
    decoding (see `_must_be_equal`), they must have done so in this run.
    """
    is_equal = (rows["tokens_equal_autoregressive"] == 1) | ~_must_be_equal(rows)
    return rows["is_exact"].eq(True) & is_equal & (rows["method_id"] != BASELINE)


def _must_be_equal(rows: pd.DataFrame) -> pd.Series:
    """Return whether the method of each row must emit the same tokens as autoregressive decoding, bool.

    Relaxed methods get False, and so do exact methods in two cases:

    - The method uses rejection sampling, which keeps the distribution, but not the tokens.
    - The dtype is bfloat16. A forward pass over several nodes then rounds differently from a pass over a single node.
      If the two largest keys of a position are closer than the rounding error, the tokens may differ.
    """
    return _keeps_tokens(rows) & (rows["dtype"] == "float32")


def add_distance(rows: pd.DataFrame) -> pd.DataFrame:
    """Add column `distance`, a method's total variation from the target, and column `has_draft_model`.

    If the total variation is unknown, `distance` is its upper bound: the share of tokens that are not the target's
    sample (substitutions). `has_draft_model` states whether the method needs a draft model.
    """
    distance = rows["tv_mean"].fillna(rows["substitution_rate"]).mask(rows["method_id"] == BASELINE, 0.0)
    distance = distance.mask(distance < ROUNDING, 0.0)
    return rows.assign(distance=distance, has_draft_model=needs_draft_model(rows))


def _keeps_tokens(rows: pd.DataFrame) -> pd.Series:
    kept = [keeps_tokens(row, row["temperature"]) for _, row in rows.iterrows()]
    return pd.Series(kept, rows.index, dtype=bool) & (rows["method_id"] != BASELINE) & rows["drafts"].notna()


def _longest(rows: pd.DataFrame) -> dict[str, object] | None:
    """Return the numbers (CLAIM_COLUMNS) of the method with the most tokens per forward pass, or None without rows."""
    return None if rows.empty else _numbers_of_row(rows.loc[rows["mean_accepted_length"].idxmax()])


def _fastest(rows: pd.DataFrame) -> dict[str, object] | None:
    """Return the numbers (CLAIM_COLUMNS) of the method with the highest speed-up, or None if no method is timed."""
    timed = rows[rows["speedup"].notna()]
    return None if timed.empty else _numbers_of_row(timed.loc[timed["speedup"].idxmax()])


def _numbers_of_row(row: pd.Series) -> dict[str, object]:
    """Return the numbers by which claims describe a method: its columns CLAIM_COLUMNS, with None for empty cells."""
    cells = ((name, row.get(name, np.nan)) for name in CLAIM_COLUMNS)
    return {name: None if pd.isna(cell) else cell if isinstance(cell, str) else float(cell) for name, cell in cells}


def _count_equal_rows(summary: pd.DataFrame) -> dict[str, float]:
    """Count the rows whose tokens must equal those of autoregressive decoding, and how many of these rows pass.

    Args:
        summary: table of results. Rows of single repeats are counted, rows that pool several repeats are not.

    Returns:
        A dict with up to four numbers.

        - num_rows: number of float32 rows whose tokens must be equal.
        - num_equal: number of these rows in which all tokens are equal.
        - num_near_ties: number of images in these rows that differ at a near-tie: two keys that are so close that
          rounding explains the difference.
        - share_equal_bfloat16: share of equal images, averaged over the bfloat16 rows. Only if there are such rows.
    """
    kept = summary[summary["repeat"] != POOLED]
    kept = kept[_keeps_tokens(kept)]
    must, rounded = (kept[(kept["dtype"] == "float32") == is_full] for is_full in (True, False))
    counts: dict[str, float] = {
        "num_rows": len(must),
        "num_equal": int((must["tokens_equal_autoregressive"] == 1).sum()),
        "num_near_ties": int(must["num_near_ties"].sum()),
    }
    if len(rounded):
        counts["share_equal_bfloat16"] = float(rounded["tokens_equal_autoregressive"].mean())
    return counts


def _judge_distributions(rows: pd.DataFrame) -> dict[str, object]:
    """Return the claim `distribution`: whether tests confirm that methods have the target's output distribution.

    The test of whole images compares a method's images with the target's distribution of images. Its p-value is column
    law_p. An exact method is refuted if any of these is true:

    - The test of whole images rejects the method.
    - Its total variation from the target at the nodes of the draft tree exceeds the rounding error.
    - Its tokens differ from those of autoregressive decoding, although they must be equal.

    For relaxed methods, the claim states for how many of them the test of whole images detects a difference.

    Args:
        rows: main results of the run, one row per method, see `select_headline`.

    Returns:
        An empty dict if no row was tested. Otherwise:

        - num_claims, num_confirmed: number of methods that a proof calls exact, and of those that passed all tests.
        - refuted: label of a refuted exact method -> p-value.
        - not_measured: labels of the exact methods that are not refuted, but that the test of whole images left out.
        - num_tests, level: number of tests of whole images, and significance level of each.
        - baseline_p: p-value of autoregressive decoding.
        - num_relaxed, num_told: number of tested relaxed methods, and number of those for which a difference was
          detected.
        - not_told: label of a relaxed method for which no difference was detected -> p-value.
    """
    others = rows[rows["method_id"] != BASELINE]
    tested, is_claimed = others["law_p"].notna(), others["is_exact"].eq(True)
    if not tested.any():
        return {}
    level = LEVEL / tested.sum()
    is_refuted = (others["law_p"] < level) | (others["tv_mean"] > ROUNDING)
    is_refuted |= _must_be_equal(others) & (others["tokens_equal_autoregressive"] < 1)
    refuted, open_ = others[is_claimed & is_refuted], others[is_claimed & ~is_refuted & ~tested]
    relaxed = others[tested & ~is_claimed]
    alike = relaxed[relaxed["law_p"] >= level]
    return {
        "num_claims": int(is_claimed.sum()),
        "num_confirmed": int(is_claimed.sum()) - len(refuted) - len(open_),
        "refuted": dict(zip(refuted["label"], refuted["law_p"], strict=True)),
        "not_measured": list(open_["label"]),
        "num_tests": int(tested.sum()),
        "level": float(level),
        "baseline_p": float(rows.loc[rows["method_id"] == BASELINE, "law_p"].iloc[0]),
        "num_relaxed": len(relaxed),
        "num_told": len(relaxed) - len(alike),
        "not_told": dict(zip(alike["label"], alike["law_p"], strict=True)),
    }


def _frontier(rows: pd.DataFrame) -> dict[str, object]:
    """Return the claim `frontier`: the Pareto frontier of tokens per forward pass and distance from the target.

    The distance is the total variation, or its upper bound if only that is known, see `add_distance`. A method is on
    the frontier if every method with a smaller or equal distance has fewer tokens per forward pass.

    Args:
        rows: main results of the run, one row per method, see `select_headline`.

    Returns:
        An empty dict if the distance of fewer than two methods is known. Otherwise:

        - all: frontier of all methods. It is a list of dicts with label, mean_accepted_length (tokens per forward
          pass) and distance. The method with the most tokens comes first.
        - without_draft_model: the same for the methods without a draft model.
        - num_rows: number of rows with a known distance.
        - not_measured: labels of the rows with an unknown distance.
    """
    placed = add_distance(rows)
    known = placed[placed["distance"].notna()]
    if (known["method_id"] != BASELINE).sum() < 2:
        return {}
    columns, best = ["label", "mean_accepted_length", "distance"], {}
    for name, part in {"all": known, "without_draft_model": known[~known["has_draft_model"]]}.items():
        rows = part.sort_values(["mean_accepted_length", "distance"], ascending=[False, True], kind="stable")
        closest_before = rows["distance"].cummin().shift(fill_value=float("inf"))
        best[name] = rows.loc[rows["distance"] < closest_before, columns].to_dict("records")
    return {**best, "num_rows": len(known), "not_measured": list(placed.loc[placed["distance"].isna(), "label"])}


def _bound(curves: pd.DataFrame) -> dict[str, object]:
    """Return the claim `delta`: whether the parameter delta of an acceptance bounds its total variation.

    Total variation compares the distributions of the emitted token and of the target's token. Published acceptances are
    checked at one delta, the measured value nearest to 0.1. Lantern's acceptance `bounded` is checked at every measured
    delta.

    Args:
        curves: total variation as a function of delta, from total_variation/curves.csv.

    Returns:
        An empty dict if `curves` is empty. Otherwise:

        - delta: the value at which published acceptances are checked.
        - published: name of the acceptance -> mean total variation and its interval at this delta.
        - published_is_above: whether the total variation of a published acceptance exceeds this delta at some node.
        - ours_is_above: whether the total variation of `bounded` exceeds delta at some node, for some delta.
        - num_nodes, num_deltas: number of nodes and of values of delta at which `bounded` is checked.
    """
    if curves.empty:  # the run has no draft model
        return {}
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
    """Compare one acceptance with others by likelihood and total variation, at equal tokens per forward pass.

    An acceptance determines the probability with which a draft is accepted. Only methods with the same drafts and tree
    are compared. The first row with acceptance `first` determines which drafts and tree these are.

    Args:
        rows: main results of the run, one row per method, see `select_headline`.
        images: one row per method and image.
        first: acceptance that is compared with the others.
        others: the other acceptances.
        options: arguments num_resamples and seed of the bootstrap.

    Returns:
        `first` -> other acceptance -> result of `compare_at_equal_length`, to which the mean total variations tv_first
        and tv_second are added. The result is None if the two have no common range of tokens per forward pass. The dict
        is empty if `first` or all others did not run.
    """
    # the acceptance "weighted" has three variants, by its parameter `fall`
    falls = rows["fall"].map({0.7: "annealed", 0.0: "constant", -0.7: "reversed"})
    rows = rows.assign(acceptance=rows["acceptance"].mask(rows["acceptance"] == "weighted", falls))
    rows["acceptance"] = rows["acceptance"].mask(rows["neighbours"] == "random", "random " + rows["acceptance"])
    asked = rows[rows["acceptance"] == first]
    if asked.empty:
        return {}
    is_same = (rows[["drafts", "tree"]] == asked[["drafts", "tree"]].iloc[0]).all(axis=1)
    rows = rows[is_same & rows["acceptance"].isin((first, *others))]
    curves = dict(list(images.merge(rows[["method_id", "acceptance"]], on="method_id").groupby("acceptance")))
    found: dict[str, dict[str, float | None] | None] = {}
    known = rows[rows["tv_mean"].notna()].sort_values("mean_accepted_length")
    for other in [other for other in others if other in curves]:
        numbers = compare_at_equal_length(curves[first], curves[other], **options)
        found[other] = None if numbers is None else {**numbers}
        if numbers:
            lengths = np.linspace(numbers["shortest"], numbers["longest"], NUM_LENGTHS)
            tvs: dict[str, float | None] = {}
            for name, kind in (("tv_first", first), ("tv_second", other)):
                curve = known[known["acceptance"] == kind]
                tv = np.interp(lengths, curve["mean_accepted_length"], curve["tv_mean"]) if len(curve) else [np.nan]
                tvs[name] = None if np.isnan(tv).any() else float(np.mean(tv))
            found[other] = {**numbers, **tvs}
    return {first: found} if found else {}


def _numbers_of_models(reports: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the claim `models`: the numbers that training reports state about the trained models.

    Args:
        reports: name of a model -> its training report.

    Returns:
        Name of a model -> name of a number -> float. Numbers of the report keep their names, integers are left out. The
        accuracy on a split gets the name `<split>_accuracy`.
    """
    found = {}
    for name, report in reports.items():
        splits = {f"{key}_accuracy": part["accuracy"] for key, part in report.items() if key in ("val", "unseen")}
        found[name] = {key: value for key, value in {**report, **splits}.items() if isinstance(value, float)}
    return found
