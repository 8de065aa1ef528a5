"""What the tables say: short answers to a reader's questions, whatever the answers are, each fact once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from lantern.methods import keeps_tokens
from lantern_pipeline.analysis.comparisons import NoCommonLengthError, compare_at_equal_length
from lantern_pipeline.analysis.summary import select_headline
from lantern_pipeline.metrics.repeats import POOLED
from lantern_pipeline.metrics.speed import BASELINE

ACCURACY_TOLERANCE = 0.02
WITHIN = f"prompt accuracy within {100 * ACCURACY_TOLERANCE:g} points of autoregressive decoding's"
MIN_TIMED = 6  # prompts: of fewer, not even the range of all their ratios holds the median with 95 % confidence
ROUNDING = 1e-5  # a total variation computed in float32 counts as above its bound from here on
EMPTY = "–"
PUBLISHED_RULES = ("sampled_paper", "top_children", "top_official")
# ablation -> question, column that tells curves apart, the curve asked about, those that it is compared with
AT_EQUAL_LENGTH = {
    "rules": (
        "Does proximity beat the published rules?",
        "method",
        "proximity",
        {"lantern": "LANTERN", "lantern_pp": "LANTERN++"},
    ),
    "neighbours": (
        "Do nearest codes beat others?",
        "neighbours",
        "l2_normalised",
        {"random": "random codes", "probability": "codes of co-varying probability"},
    ),
}


@dataclass(frozen=True)
class Finding:
    """A question, its answer in a line, what else belongs to the answer, and its numbers for machines."""

    question: str
    answer: str
    details: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)


def find_answers(
    summary: pd.DataFrame,
    curves: pd.DataFrame,
    ablations: Mapping[str, pd.DataFrame],
    reports: Mapping[str, Mapping[str, Any]],
    *,
    settings: Mapping[str, Any],
    seed: int,
) -> list[Finding]:
    """Answers the questions that a reader of the papers has, the most important first; what was not run is left out.

    `curves` is total_variation/curves.csv, `ablations` per-image tables by name, `reports` what the training rules of
    target, tokenizer, attribute_classifier and clip reported, `settings` config section `metrics`, `seed` that of the
    bootstrap.
    """
    rows = select_headline(summary, settings)
    baseline, exact, relaxed = fastest_rows(rows)
    alone = _fastest(rows[is_lossless(rows) & (rows["drafts"] == "jacobi")])
    findings = [_exact(exact, alone, summary), _relaxed(relaxed, exact, rows), _cost(relaxed, baseline), _bound(curves)]
    options = {"num_resamples": settings["bootstrap_resamples"], "seed": seed}
    for name, (question, column, first, others) in AT_EQUAL_LENGTH.items():
        if name not in ablations:
            continue
        curves = {kind: part for kind, part in ablations[name].groupby(column) if kind == first or kind in others}
        findings.append(compare_curves(question, curves, first, others, options))
    findings.append(_models(reports))
    return [finding for finding in findings if finding is not None]


def caption_numbers(summary: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, str]:
    """What captions of the report say of the headline rows: name -> text."""
    row = select_headline(summary, settings).set_index("method_id").loc[BASELINE]
    is_timed = not pd.isna(row["speedup"])
    return {
        "prompt_set": str(row["prompt_set"]),
        "temperature": f"{row['temperature']:g}",
        "cfg_scale": f"{row['cfg_scale']:g}",
        "prompts": describe_prompts(row),
        "num_timed": f"{_num_timed(row):.0f}" if is_timed else "no",
        "autoregressive_latency_ms": f"{1000 * row['latency_s']:.0f}" if is_timed else "unknown",
    }


def describe_prompts(row: Mapping[str, Any]) -> str:
    """Writes what a row's intervals are over: "96 prompts", or "96 prompts in 3 repeats"."""
    num_repeats = int(row["num_repeats"])
    prompts = f"{int(row['num_images']) // num_repeats} prompts"
    return prompts if num_repeats == 1 else f"{prompts} in {num_repeats} repeats"


def fastest_rows(rows: pd.DataFrame) -> tuple[pd.Series, pd.Series | None, pd.Series | None]:
    """Of the headline rows: autoregressive decoding's, and the fastest exact and relaxed ones that were timed, the
    relaxed one among those that keep prompt accuracy.
    """
    baseline = rows[rows["method_id"] == BASELINE].iloc[0]
    lost = baseline["prompt_accuracy"] - rows["prompt_accuracy"]  # nan (prompts of free text) rules no row out
    keeps_accuracy = ~(lost > ACCURACY_TOLERANCE + 1e-9)
    return baseline, _fastest(rows[is_lossless(rows)]), _fastest(rows[(rows["relaxation"] != "none") & keeps_accuracy])


def is_lossless(rows: pd.DataFrame) -> pd.Series:
    """Tells which rows are exact: no relaxation, and tokens equal to autoregressive decoding's where they must be.

    Verification by rejection without relaxation keeps the distribution, not the tokens; it counts by its proof. In
    bfloat16 a forward over several nodes rounds otherwise than one over a single node, and tokens part wherever two
    candidates are closer than that. Autoregressive decoding itself does not count.
    """
    is_equal = (rows["tokens_equal_autoregressive"] == 1) | ~must_be_equal(rows)
    return (rows["relaxation"] == "none") & is_equal & (rows["method_id"] != BASELINE)


def must_be_equal(rows: pd.DataFrame) -> pd.Series:
    """Tells which rows must hold autoregressive decoding's tokens, one for one."""
    return _keeps_tokens(rows) & (rows["dtype"] == "float32")


def _keeps_tokens(rows: pd.DataFrame) -> pd.Series:
    kept = [keeps_tokens(row, row["temperature"]) for _, row in rows.iterrows()]
    return pd.Series(kept, rows.index, dtype=bool) & (rows["method_id"] != BASELINE) & rows["drafts"].notna()


def _fastest(rows: pd.DataFrame) -> pd.Series | None:
    timed = rows[rows["speedup"].notna()]
    return None if timed.empty else timed.loc[timed["speedup"].idxmax()]


def _num_timed(row: pd.Series) -> float:
    """Timed prompts, each of which is timed in every repeat."""
    return row["num_timed"] / row["num_repeats"]


def _speed(row: pd.Series, slower: float = 1.0, slower_high: float = 1.0) -> str:
    """Judges whether a row is faster than another one, as far as its timed prompts can tell."""
    word = "yes" if row["speedup_low"] > slower_high else "perhaps" if row["speedup"] > slower else "no"
    if _num_timed(row) < MIN_TIMED:
        word = f"too few timed prompts to tell ({_num_timed(row):.0f})"
    return f"{word}, {row['label']}, speed-up {with_interval(row, 'speedup')}"


def _exact(exact: pd.Series | None, alone: pd.Series | None, summary: pd.DataFrame) -> Finding:
    """Whether exact methods are exact, over all prompt sets, temperatures and repeats, and faster; `exact` is the
    fastest of them, `alone` the fastest without a draft model.
    """
    single = summary[summary["repeat"] != POOLED]
    kept = single[_keeps_tokens(single)]
    must = kept[kept["dtype"] == "float32"]
    num_equal = int((must["tokens_equal_autoregressive"] == 1).sum())
    if len(must):
        answer = f"{'' if num_equal == len(must) else 'NOT EXACT: '}tokens equal in {num_equal} of {len(must)} rows"
        details = (
            "Rows are of exact methods that must emit autoregressive decoding's tokens, one for one, in every image; "
            f"{int(must['num_near_ties'].sum())} images are excepted for a near-tie."
        )
    elif len(kept):
        answer = f"tokens equal in {100 * kept['tokens_equal_autoregressive'].mean():.0f} % of the images (bfloat16)"
        details = (
            "Decoded in bfloat16, where a forward over several nodes rounds otherwise than one over a single node; "
            "whether a method is exact is judged in float32."
        )
        margin = kept["margin_at_difference"].median()
        if not pd.isna(margin):
            details += f" Where images first part, the best two candidates are {margin:.2g} nats apart."
    else:
        answer, details = "no method was run whose tokens must be equal", ""
    answer += "; none was timed" if exact is None else f"; faster: {_speed(exact)}"
    if alone is not None and alone["method_id"] == exact["method_id"]:
        answer += ", without a draft model"
    elif alone is not None:
        details += f" The fastest without a draft model: {alone['label']}, speed-up {with_interval(alone, 'speedup')}."
    numbers = {"num_rows": len(must), "num_equal_rows": num_equal, **_numbers(exact, "speedup")}
    return Finding("Exact, and faster?", f"{_capitalise(answer)}.", details, numbers)


def _relaxed(relaxed: pd.Series | None, exact: pd.Series | None, rows: pd.DataFrame) -> Finding:
    """Whether relaxed methods that keep prompt accuracy are faster than the fastest exact one."""
    question, is_judged = "Relaxed, and faster still?", rows["prompt_accuracy"].notna().any()
    if relaxed is None:
        return Finding(question, f"No timed relaxed method has {WITHIN}." if is_judged else "No relaxed row was timed.")
    details = f"It is the fastest with {WITHIN}."
    if not is_judged:
        details = "Prompt accuracy is not measured on these prompts: no relaxed method is ruled out by its images."
    slower = rows[(rows["relaxation"] != "none") & (rows["speedup_high"] < 1) & (_num_timed(rows) >= MIN_TIMED)]
    if len(slower):
        details += f" Slower than autoregressive decoding: {', '.join(slower['label'])}."
    others = () if exact is None else (exact["speedup"], exact["speedup_high"])
    return Finding(question, f"{_capitalise(_speed(relaxed, *others))}.", details, _numbers(relaxed, "speedup"))


def _cost(row: pd.Series | None, baseline: pd.Series) -> Finding | None:
    """What the fastest relaxed method costs."""
    if row is None:
        return None
    before, after = f"{baseline['nll']:.2f}", f"{row['nll']:.2f}"
    verb = "stays" if before == after else "rises" if row["nll"] > baseline["nll"] else "falls"
    answer = f"The NLL {verb} from {before} to {with_interval(row, 'nll')}"
    details = "Likelier tokens are no merit by themselves: such images vary less than others. " * (verb == "falls")
    if not pd.isna(row["prompt_accuracy_change"]):
        answer += f"; prompt accuracy changes by {with_interval(row, 'prompt_accuracy_change', '+.1f', 100)} points"
        if row["prompt_accuracy_change_low"] <= 0 <= row["prompt_accuracy_change_high"]:
            details += f"Such a change of accuracy {describe_prompts(row)} cannot tell from none. "
    if not pd.isna(row["tv_mean"]):
        details += f"The distribution of its tokens lies {row['tv_mean']:.2f} in total variation from the target's."
    return Finding("At what cost?", f"{answer}.", details.strip(), _numbers(row, "nll"))


def _bound(curves: pd.DataFrame) -> Finding | None:
    """Whether delta bounds the total variation: of published rules at the delta nearest to 0.1, of ours at all."""
    if curves.empty:  # of a run without a draft model
        return None
    delta = min(sorted(curves["delta"].unique()), key=lambda value: abs(value - 0.1))
    at = curves[curves["delta"] == delta].set_index("rule").loc[list(PUBLISHED_RULES)]
    ours = curves[curves["rule"] == "bounded"]
    kept = "never exceeds" if (ours["tv_max"] <= ours["delta"] + ROUNDING).all() else "EXCEEDS"
    word = "Not of the published rules" if (at["tv_share_above_delta"] > 0).any() else "Yes, at these nodes"
    low, high = at["tv_mean"].min(), at["tv_mean"].max()
    answer = f"{word}: mean TV {low:.2f} to {high:.2f} at delta {delta:g}; ours {kept} its delta."
    parts = "; ".join(f"{row['label']}: {with_interval(row, 'tv_mean')}" for _, row in at.iterrows())
    details = (
        f"Total variation between the distributions of the emitted and of the target's token at delta {delta:g}, mean "
        f"over nodes: {parts}. Ours was looked at on {int(ours['num_nodes'].max())} nodes, {len(ours)} values of delta."
    )
    return Finding("Is delta a bound?", answer, details, {"delta": float(delta), **at["tv_mean"]})


def compare_curves(
    question: str, curves: Mapping[str, pd.DataFrame], first: str, others: Mapping[str, str], options: Mapping[str, int]
) -> Finding | None:
    """Compares the curve that a question is about with `others`, kind -> its name in words, at equal accepted length;
    nothing where none of them was run. `curves` are rows of images by kind.
    """
    if first not in curves or len(curves) < 2:
        return None
    answers, details, numbers = [], [], {}
    for other in [other for other in others if other in curves]:
        try:
            found = compare_at_equal_length(curves[first], curves[other], **options)
        except NoCommonLengthError:
            answers.append(f"{others[other]}: no accepted length in common")
            continue
        word = "better" if found.high < 0 else "worse" if found.low > 0 else "not told apart"
        change = f"{found.difference:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"
        answers.append(f"{others[other]}: {word}, NLL {change}")
        details.append(
            f"{_capitalise(others[other])}, at {found.shortest:.2f} to {found.longest:.2f} tokens per forward: "
            f"{found.first:.2f} against {found.second:.2f} nats per token."
        )
        numbers[other] = found.difference
    return Finding(question, f"{_capitalise('; '.join(answers))}.", " ".join(details), numbers)


def describe_models(reports: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """How good trained models are, and those that measure: a sentence each, of what their rules reported."""
    return [describe(reports[name]) for name, describe in _MODELS.items() if name in reports]


def _models(reports: Mapping[str, Mapping[str, Any]]) -> Finding | None:
    sentences = describe_models(reports)
    return Finding("How good are the models?", sentences[0], " ".join(sentences[1:])) if sentences else None


def _target(report: Mapping[str, Any]) -> str:
    if "val_cross_entropy" not in report:
        size = f"{report['num_parameters'] / 1e6:.0f} million parameters"
        return f"The target is the published {report['checkpoint']}, {size}."
    return (
        f"The target has {report['val_cross_entropy']:.2f} nats per token on held-out images; an undertrained one "
        "flatters every speed-up."
    )


def _drafter(report: Mapping[str, Any]) -> str:
    return (
        f"The target accepts {_percent(report['val_acceptance_1'])} of the draft model's first drafts on held-out "
        f"images, and a chain of its sampled drafts is expected to emit {report['val_expected_length']:.2f} tokens per "
        "forward."
    )


def _tokenizer(report: Mapping[str, Any]) -> str:
    if "psnr_db" not in report:
        return f"The image tokenizer is the published {report['checkpoint']}."
    read = f", with {_percent(report['accuracy'])} of their attributes still read" if "accuracy" in report else ""
    return (
        f"The image tokenizer reconstructs held-out images at {report['psnr_db']:.1f} dB{read}, and uses "
        f"{_percent(report['codes_used_share'])} of its codes."
    )


def _attribute_classifier(report: Mapping[str, Any]) -> str:
    seen, unseen = (_percent(report[split]["accuracy"]) for split in ("val", "unseen"))
    return (
        f"The attribute classifier, trained on procedural shapes, reads {seen} of the attributes of held-out pictures "
        f"of such shapes, {unseen} in unseen combinations."
    )


def _clip(report: Mapping[str, Any]) -> str:
    there, back = (_percent(report[f"val_{way}_accuracy"]) for way in ("image_to_text", "text_to_image"))
    return (
        f"The CLIP model finds a held-out image's caption among {report['num_candidates']} in {there} of cases, and "
        f"the image of a caption in {back}."
    )


_MODELS = {
    "target": _target,
    "tokenizer": _tokenizer,
    "drafter": _drafter,
    "attribute_classifier": _attribute_classifier,
    "clip": _clip,
}


def with_interval(row: Mapping[str, Any], name: str, spec: str = ".2f", factor: float = 1.0) -> str:
    """Writes a value and its interval as "value [low, high]"; the value alone where there is no interval."""
    value, low, high = (factor * row[f"{name}{end}"] for end in ("", "_low", "_high"))
    texts = [EMPTY if pd.isna(number) else f"{number:{spec}}" for number in (value, low, high)]
    return texts[0] if EMPTY in texts or len(set(texts)) == 1 else f"{texts[0]} [{texts[1]}, {texts[2]}]"


def _numbers(row: pd.Series | None, name: str) -> dict[str, Any]:
    """A row's method and one of its measured columns, as JSON values."""
    if row is None:
        return {}
    ends = {f"{name}{end}": row[f"{name}{end}"] for end in ("", "_low", "_high")}
    return {"method_id": row["method_id"], **{key: None if pd.isna(end) else float(end) for key, end in ends.items()}}


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]
