"""What holds and what does not on this run's world, in plain words made from the tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from lantern_pipeline.analysis.comparisons import EqualLength, NoCommonLengthError, compare_at_equal_length
from lantern_pipeline.analysis.verdict import interval, is_lossless, select_headline
from lantern_pipeline.metrics.speed import BASELINE

ROUNDING = 1e-5
NAMES = {"proximity": "proximity", "lantern": "LANTERN's rule", "lantern_pp": "LANTERN++'s rule"}


def describe_findings(
    summary: pd.DataFrame,
    curves: pd.DataFrame,
    ablations: Mapping[str, pd.DataFrame],
    *,
    settings: Mapping[str, Any],
    seed: int,
) -> str:
    """Answers the questions that a reader of the papers has, whatever the answers are.

    Args:
        summary: table of `build_summary`.
        curves: total_variation/curves.csv.
        ablations: name -> per-image table; `rules` and `neighbours` are read, and what is missing is left out.
        settings: config section `metrics`.
        seed: of the bootstrap.

    Returns:
        Markdown: one bullet per question.
    """
    options = {"num_resamples": settings["bootstrap_resamples"], "seed": seed}
    rows = select_headline(summary, settings)
    answers = {
        "Does relaxation buy speed?": _speed(rows),
        "At what cost?": _cost(rows),
        "Is delta a bound?": _bound(curves),
        "Does proximity beat the published rules at equal accepted length?": _rules(ablations.get("rules"), options),
        "Are nearest codes better than random ones?": _neighbours(ablations.get("neighbours"), options),
    }
    return "\n".join(f"- **{question}** {answer}" for question, answer in answers.items() if answer)


def _speed(rows: pd.DataFrame) -> str:
    timed = rows[rows["speedup"].notna()]
    lossless, relaxed = timed[is_lossless(timed)], timed[timed["relaxation"] != "none"]
    if lossless.empty or relaxed.empty:
        return ""
    exact, loose = (part.loc[part["speedup"].idxmax()] for part in (lossless, relaxed))
    clear = loose["speedup_low"] > exact["speedup_high"]
    verb = "Yes" if clear else "Perhaps" if loose["speedup"] > exact["speedup"] else "No"
    slower = relaxed[relaxed["speedup_high"] < 1]["label"]
    text = (
        f"{verb}: the fastest relaxed method, {loose['label']}, runs at {_speedup(loose)} times autoregressive "
        f"decoding, the fastest lossless one, {exact['label']}, at {_speedup(exact)}"
    )
    text += "." if clear else "; their intervals overlap."
    if len(slower):
        text += f" Slower than autoregressive decoding here: {', '.join(slower)}."
    return text


def _speedup(row: pd.Series) -> str:
    return f"{row['speedup']:.2f} {interval(row['speedup_low'], row['speedup_high'])}"


def _cost(rows: pd.DataFrame) -> str:
    relaxed = rows[(rows["relaxation"] != "none") & rows["speedup"].notna()]
    if relaxed.empty:
        return ""
    baseline, row = rows[rows["method_id"] == BASELINE].iloc[0], relaxed.loc[relaxed["speedup"].idxmax()]
    text = (
        f"{row['label']} raises the negative log-likelihood under the target from {baseline['nll']:.2f} to "
        f"{row['nll']:.2f} {interval(row['nll_low'], row['nll_high'])} nats per token"
    )
    change = [100 * row[f"prompt_accuracy_change{end}"] for end in ("", "_low", "_high")]
    if not pd.isna(change[0]):
        is_seen = change[1] > 0 or change[2] < 0
        text += f"; prompt accuracy changes by {change[0]:+.1f} [{change[1]:+.1f}, {change[2]:+.1f}] points"
        text += "" if is_seen else f", which {int(baseline['num_images'])} prompts cannot tell from none"
    if not pd.isna(row["tv_mean"]):
        text += f". The law of its tokens lies {row['tv_mean']:.2f} in total variation from the target's"
    return text + "."


def _bound(curves: pd.DataFrame) -> str:
    deltas = sorted(curves["delta"].unique())
    delta = min(deltas, key=lambda value: abs(value - 0.1))
    at = curves[curves["delta"] == delta].set_index("rule")
    published = ("sampled_paper", "top_children", "top_official")
    parts = [
        f"{at.loc[rule, 'label']}: {at.loc[rule, 'tv_mean']:.2f} {_mean_interval(at.loc[rule])}" for rule in published
    ]
    text = f"Total variation between emitted and target law at delta = {delta:g}, mean over nodes: {'; '.join(parts)}. "
    above = [rule for rule in published if at.loc[rule, "tv_share_above_delta"] > 0]
    ours = curves[curves["rule"] == "bounded"]
    is_kept = (ours["tv_max"] <= ours["delta"] + ROUNDING).all()
    verdict = "No, for the published rules. " if above else "Yes, at these nodes. "
    kept = "never exceeds its delta" if is_kept else "EXCEEDS its delta"
    return f"{verdict}{text}Our budget {kept} at any of {int(ours['num_nodes'].max())} nodes and {len(ours)} values."


def _mean_interval(row: pd.Series) -> str:
    return interval(row["tv_mean_low"], row["tv_mean_high"])


def _rules(images: pd.DataFrame | None, options: Mapping[str, int]) -> str:
    if images is None or "proximity" not in set(images["method"]):
        return ""
    others = [name for name in ("lantern", "lantern_pp") if name in set(images["method"])]
    curves = {name: images[images["method"] == name] for name in ("proximity", *others)}
    compared = {name: _compare(curves["proximity"], curves[name], options) for name in others}
    return _answer({f"{NAMES[name]}": found for name, found in compared.items()}, "proximity")


def _neighbours(images: pd.DataFrame | None, options: Mapping[str, int]) -> str:
    if images is None or not {"l2_normalised", "random"} <= set(images["neighbours"].dropna()):
        return ""
    kinds = [kind for kind in ("random", "probability") if kind in set(images["neighbours"])]
    curves = {kind: images[images["neighbours"] == kind] for kind in ("l2_normalised", *kinds)}
    names = {"random": "random codes", "probability": "codes whose probabilities co-vary"}
    compared = {names[kind]: _compare(curves["l2_normalised"], curves[kind], options) for kind in kinds}
    return _answer(compared, "nearest codes")


def _compare(first: pd.DataFrame, second: pd.DataFrame, options: Mapping[str, int]) -> EqualLength | None:
    try:
        return compare_at_equal_length(first, second, **options)
    except NoCommonLengthError:
        return None


def _answer(compared: Mapping[str, EqualLength | None], name: str) -> str:
    """One clause per comparison, and a word in front of it for the first."""
    clauses, words = [], []
    for other, found in compared.items():
        if found is None:
            clauses.append(f"against {other}: no accepted length in common")
            words.append("Unknown")
            continue
        word = "Yes" if found.high < 0 else "No, the other way round" if found.low > 0 else "Not detectably"
        words.append(word)
        clauses.append(
            f"against {other} at {found.shortest:.2f} to {found.longest:.2f} tokens per forward: {found.first:.2f} "
            f"against {found.second:.2f} nats per token, difference {found.difference:+.2f} "
            f"[{found.low:+.2f}, {found.high:+.2f}]"
        )
    if len(set(words)) == 1:
        return f"{words[0]}: {name} {'; '.join(clauses)}."
    return f"{name.capitalize()} " + "; ".join(f"{c} ({w.lower()})" for c, w in zip(clauses, words, strict=True)) + "."
