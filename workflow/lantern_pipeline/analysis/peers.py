"""What a table of many methods says of the peers: whose law is the target's, who is on the frontier, and which way to
relax costs less at equal accepted length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from lantern.methods import DRAFTS_WITHOUT_MODEL
from lantern_pipeline.analysis.comparisons import NUM_LENGTHS
from lantern_pipeline.analysis.findings import ROUNDING, Finding, compare_curves, must_be_equal
from lantern_pipeline.analysis.summary import select_headline
from lantern_pipeline.metrics.speed import BASELINE

LEVEL = 0.05  # of all tests of the law together: each has its share of it
CLAIMED = ("none", "public_labels", "public_tree")  # relaxations whose authors call the law the target's
CLAIMS, FRONTIER = "Which claims of losslessness stand?", "Who is on the frontier?"
# question, the relaxation asked about, those that it is compared with, on the same tree of the same drafts
AT_EQUAL_LENGTH = (
    (
        "Does annealing beat a constant weight?",
        "annealed",
        {"constant": "a constant weight", "reversed": "annealing from the other end"},
    ),
    (
        "Do groups of equally probable codes beat look-alikes?",
        "group",
        {"additive": "LANTERN", "multiplicative": "LANTERN++"},
    ),
)
QUESTIONS = (CLAIMS, FRONTIER, *(question for question, *_ in AT_EQUAL_LENGTH))


def find_about_peers(
    summary: pd.DataFrame, images: pd.DataFrame, *, settings: Mapping[str, Any], seed: int
) -> list[Finding]:
    """Answers what a reader of the peers asks, from the headline's rows; what was not run is left out.

    `summary` is the run's table, `images` its tables of images, `settings` config section `metrics`, `seed` that of the
    bootstrap.
    """
    rows = select_headline(summary, settings)
    place = {"prompt_set": rows["prompt_set"].iloc[0], "temperature": rows["temperature"].iloc[0]}
    place["repeat"] = images["repeat"].iloc[0]
    images = images[(images[list(place)] == pd.Series(place)).all(axis=1)]
    options = {"num_resamples": settings["bootstrap_resamples"], "seed": seed}
    compared = [_compare(rows, images, *about, options) for about in AT_EQUAL_LENGTH]
    return [finding for finding in (_claims(rows), _frontier(rows), *compared) if finding is not None]


def _claims(rows: pd.DataFrame) -> Finding | None:
    """Which rows that are said to have the target's law pass the test of it, and what it sees of the relaxed ones."""
    others = rows[rows["method_id"] != BASELINE]
    tested, claimed = others[others["law_p"].notna()], others["relaxation"].isin(CLAIMED)
    if tested.empty:
        return None
    level, own = LEVEL / len(tested), rows.loc[rows["method_id"] == BASELINE, "law_p"].iloc[0]
    is_refuted = (others["law_p"] < level) | (others["tv_mean"] > ROUNDING)
    is_equal = must_be_equal(others)
    is_refuted |= is_equal & (others["tokens_equal_autoregressive"] < 1)
    is_open = claimed & ~is_refuted & others["law_p"].isna()
    refuted, open_ = others[claimed & is_refuted], others[is_open]
    alone = others[claimed & ~is_refuted & ~is_open & ~is_equal & others["tv_mean"].isna()]
    answer = f"{claimed.sum() - len(refuted) - len(open_)} of {claimed.sum()} stand"
    answer += f"; refuted: {_list(refuted, 'law_p', 'p {:.2g}')}" if len(refuted) else ""
    answer += f"; not measured: {_list(open_)}" if len(open_) else ""
    relaxed = tested[~tested["relaxation"].isin(CLAIMED)]
    alike = relaxed[relaxed["law_p"] >= level]
    details = (
        "A claim stands where neither a chi-square test of whole images, nor total variation at nodes, nor an unequal "
        f"token (where all must be autoregressive decoding's) refutes it. A p below {level:.2g} does, {100 * LEVEL:g} %"
        f" over {len(tested)} tests; autoregressive decoding's own is {own:.2g}. The test tells "
        f"{len(relaxed) - len(alike)} of {len(relaxed)} relaxed rows from the target"
    )
    details += f", but not {_list(alike, 'law_p', 'p {:.2g}')}." if len(alike) else "."
    details += f" On that test alone stands {_list(alone)}." if len(alone) else ""
    numbers = {"num_claims": int(claimed.sum()), "num_refuted": len(refuted), "num_not_measured": len(open_)}
    return Finding(CLAIMS, f"{answer}.", details, numbers)


def place_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Adds to headline rows `has_draft_model`, and `distance`: total variation at nodes, or its upper bound, the share
    of substitutions; 0 for autoregressive decoding and within rounding, nan where neither is known.
    """
    has_draft_model = rows["drafts"].notna() & ~rows["drafts"].isin(DRAFTS_WITHOUT_MODEL)
    distance = rows["tv_mean"].fillna(rows["substitution_rate"]).mask(rows["method_id"] == BASELINE, 0.0)
    return rows.assign(distance=distance.mask(distance < ROUNDING, 0.0), has_draft_model=has_draft_model)


def _frontier(rows: pd.DataFrame) -> Finding | None:
    """Rows than which none is as fast and as close to the target: among all, and among those without a draft model."""
    measure = "speedup" if rows["speedup"].notna().any() else "mean_accepted_length"
    placed = place_rows(rows[rows[measure].notna()])
    known = placed[placed["distance"].notna()]
    unknown = placed[placed["distance"].isna()]
    if (known["method_id"] != BASELINE).sum() < 2:
        return None
    best = _undominated(known, measure)
    alone = _undominated(known[~known["has_draft_model"]], measure)

    def write(found: pd.DataFrame) -> str:
        return ", ".join(f"{row['label']} ({row[measure]:.2f}, {row['distance']:.2g})" for _, row in found.iterrows())

    word = "Speed-up" if measure == "speedup" else "Tokens per forward"
    answer = f"{word} and total variation, fastest first: {write(best)}."
    details = f"Without a draft model: {write(alone)}. Of {len(known)} rows, by their point estimates."
    details += f" Total variation not measured: {_list(unknown)}." if len(unknown) else ""
    return Finding(FRONTIER, answer, details, {"method_ids": list(best["method_id"])})


def _undominated(rows: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Rows closer to the target than all faster ones, the fastest first."""
    rows = rows.sort_values([measure, "distance"], ascending=[False, True], kind="stable")
    closest_before = rows["distance"].cummin().shift(fill_value=float("inf"))
    return rows[rows["distance"] < closest_before]


def _compare(
    rows: pd.DataFrame,
    images: pd.DataFrame,
    question: str,
    first: str,
    others: Mapping[str, str],
    options: Mapping[str, int],
) -> Finding | None:
    """Compares relaxations of the same drafts on the same tree: likelihood of their images, total variation."""
    asked = rows[rows["relaxation"] == first]
    if asked.empty:
        return None
    is_same = (rows[["drafts", "tree"]] == asked[["drafts", "tree"]].iloc[0]).all(axis=1)
    rows = rows[is_same & rows["relaxation"].isin((first, *others))]
    drawn = images.merge(rows[["method_id", "relaxation"]], on="method_id")
    found = compare_curves(question, dict(list(drawn.groupby("relaxation"))), first, others, options)
    if found is None:
        return None
    missing = [name for kind, name in others.items() if kind not in set(rows["relaxation"])]
    answer = f"{found.answer} Not measured: {', '.join(missing)}." if missing else found.answer
    return replace(found, answer=answer, details=f"{found.details} {_describe_distances(rows, first, others)}".strip())


def _describe_distances(rows: pd.DataFrame, first: str, others: Mapping[str, str]) -> str:
    """Total variation over the accepted lengths that two curves both reach, read off the lines between their rows."""
    known = rows[rows["tv_mean"].notna()].sort_values("mean_accepted_length")
    curves = {
        kind: part[["mean_accepted_length", "tv_mean"]].to_numpy().T for kind, part in known.groupby("relaxation")
    }
    told = []
    for other in [other for other in others if {first, other} <= curves.keys()]:
        pair = curves[first], curves[other]
        shortest, longest = max(lengths[0] for lengths, _ in pair), min(lengths[-1] for lengths, _ in pair)
        if shortest <= longest:
            means = [np.interp(np.linspace(shortest, longest, NUM_LENGTHS), *curve).mean() for curve in pair]
            told.append(f"{means[0]:.3f} against {means[1]:.3f} ({others[other]})")
    return f"Mean total variation there: {', '.join(told)}." if told else ""


def _list(rows: pd.DataFrame, name: str = "", spec: str = "") -> str:
    """Labels of rows, each with a number in brackets where `name` is given."""
    return ", ".join(row["label"] + (f" ({spec.format(row[name])})" if name else "") for _, row in rows.iterrows())
