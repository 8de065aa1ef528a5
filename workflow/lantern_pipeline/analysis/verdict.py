"""What the table says about the claims, in numbers and in plain words, whether or not the claims come out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from lantern.methods import keeps_tokens
from lantern_pipeline.analysis.method_labels import label_rows
from lantern_pipeline.analysis.rulers import describe_rulers
from lantern_pipeline.analysis.summary import preferred_rows
from lantern_pipeline.metrics.repeats import POOLED
from lantern_pipeline.metrics.speed import BASELINE

ACCURACY_TOLERANCE = 0.02
WITHIN = f"within {100 * ACCURACY_TOLERANCE:g} points"
LOSSLESS_CLAIM = 1.2
RELAXED_CLAIMS = (1.5, 2.0)
MISSING = "not measured"


@dataclass(frozen=True)
class Best:
    """The fastest row of a kind.

    Attributes:
        label: of the method, with parameters; "none" where no row qualifies.
        row: its columns; empty where no row qualifies.
    """

    label: str
    row: Mapping[str, Any]

    def value(self, name: str) -> float:
        """A column's value, nan where no row qualifies."""
        return float(self.row[name]) if name in self.row else float("nan")


def select_headline(summary: pd.DataFrame, settings: Mapping[str, Any]) -> pd.DataFrame:
    """Selects the rows of the headline prompt set and temperature, with a column `label`; ceilings are left out.

    All repeats pooled where the table has that, else the only repeat.

    Raises:
        ValueError: there are none, or autoregressive decoding is not among them.
    """
    prompt_set, temperature = settings["headline_prompt_set"], settings["headline_temperature"]
    rows = preferred_rows(summary)
    rows = rows[(rows["prompt_set"] == prompt_set) & (rows["temperature"] == temperature)]
    if BASELINE not in set(rows["method_id"]):
        raise ValueError(
            f"the table has no {BASELINE} row for metrics.headline_prompt_set {prompt_set} at "
            f"metrics.headline_temperature {temperature:g}"
        )
    rows = rows.reset_index(drop=True)
    return rows.assign(label=label_rows(rows))


def is_lossless(rows: pd.DataFrame) -> pd.Series:
    """Tells which rows are exact: no relaxation, and tokens equal to autoregressive decoding's.

    Verification by rejection (sampled drafts, or the authors' code) without relaxation keeps the law, not the tokens;
    it counts by its proof. Autoregressive decoding itself does not count, nor does a row whose tokens should be equal
    and are not.
    """
    is_equal = (rows["tokens_equal_autoregressive"] == 1) | ~_must_be_equal(rows)
    return (rows["relaxation"] == "none") & is_equal & (rows["method_id"] != BASELINE)


def _must_be_equal(rows: pd.DataFrame) -> pd.Series:
    """Tells which rows must equal autoregressive decoding token for token: those that keep its tokens, in float32.

    In bfloat16 a forward over several nodes rounds otherwise than one over a single node, and tokens part wherever two
    candidates are closer than that.
    """
    return _keeps_tokens(rows) & (rows["dtype"] == "float32")


def _keeps_tokens(rows: pd.DataFrame) -> pd.Series:
    kept = [keeps_tokens(row, row["temperature"]) for _, row in rows.iterrows()]
    return pd.Series(kept, rows.index, dtype=bool) & (rows["method_id"] != BASELINE) & rows["drafts"].notna()


def compute_verdict(
    summary: pd.DataFrame, settings: Mapping[str, Any], reports: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """Finds the fastest lossless row and the fastest relaxed row that keeps prompt accuracy, and judges the claims.

    Args:
        summary: table of `build_summary`.
        settings: config section `metrics`: headline_prompt_set, headline_temperature.
        reports: training reports for `describe_rulers`; None for none.

    Returns:
        JSON values: `claims` (list of text, holds, speedup, low, high, method), `text` (a paragraph), `numbers` (name
            -> text, for captions). Where prompt accuracy is not measured, the fastest relaxed row is that whatever its
            images are; `text` says so, and neither claims nor numbers speak of it.
    """
    rows = select_headline(summary, settings)
    baseline = rows[rows["method_id"] == BASELINE].iloc[0]
    is_judged = not pd.isna(baseline["prompt_accuracy"])  # a nan (prompts of free text) rules no row out
    lost = baseline["prompt_accuracy"] - rows["prompt_accuracy"]
    is_faithful = (rows["relaxation"] != "none") & ~(lost > ACCURACY_TOLERANCE + 1e-9)
    lossless, relaxed = _fastest(rows[is_lossless(rows)]), _fastest(rows[is_faithful])
    kept = f"no timed row keeps prompt accuracy {WITHIN}" if is_judged else "no relaxed row was timed"
    claims = [_judge("lossless", lossless, LOSSLESS_CLAIM, "no such row was timed")]
    claims += [_judge("relaxed", relaxed, claim, kept) for claim in RELAXED_CLAIMS]
    numbers = {
        **_baseline_numbers(baseline),
        **_best_numbers("lossless", lossless),
        **_best_numbers("relaxed", relaxed),
        **_relaxed_texts(baseline, relaxed),
        **_equality_numbers(summary),
    }
    text = " ".join([_setting_text(baseline), *(claim["text"] for claim in claims), numbers["equality_text"]])
    return {
        "claims": claims,
        "text": text,
        "numbers": {**numbers, "verdict": text, "rulers": describe_rulers(reports or {})},
    }


def _fastest(rows: pd.DataFrame) -> Best:
    timed = rows[rows["speedup"].notna()]
    if timed.empty:
        return Best("none", {})
    row = timed.loc[timed["speedup"].idxmax()]
    return Best(str(row["label"]), row.to_dict())


def _judge(kind: str, best: Best, claim: float, reason: str) -> dict[str, Any]:
    """One claim: at least `claim` times faster than autoregressive decoding; the reason is for no row at all."""
    wanted = f"a {kind} speed-up of at least {claim:g}"
    if not best.row:
        return {"kind": kind, "claim": claim, "holds": False, "text": f"Not shown: {wanted}; {reason}.", "method": None}
    speedup, low, high = (best.value(f"speedup{end}") for end in ("", "_low", "_high"))
    measured = f"{best.label} reaches {speedup:.2f} {interval(low, high)}"
    if kind == "relaxed" and not pd.isna(best.value("prompt_accuracy_change")):
        measured += f", at a change of prompt accuracy of {100 * best.value('prompt_accuracy_change'):+.1f} points"
    if speedup < claim:
        sentence = f"Not reached: {wanted}; the best, {measured}."
    elif low < claim:
        sentence = f"Reached, though the interval does not exclude less: {wanted}; {measured}."
    else:
        sentence = f"Reached: {wanted}; {measured}."
    return {
        "kind": kind,
        "claim": claim,
        "holds": bool(speedup >= claim),
        "text": sentence,
        "method": best.row["method_id"],
        "speedup": speedup,
        "low": _or_none(low),
        "high": _or_none(high),
    }


def interval(low: float, high: float, digits: int = 2) -> str:
    """Writes a 95 % interval as [low, high]; "(no interval)" where there are too few prompts for one."""
    return "(no interval)" if pd.isna(low) else f"[{low:.{digits}f}, {high:.{digits}f}]"


def _or_none(value: float) -> float | None:
    return None if pd.isna(value) else value


def _setting_text(baseline: pd.Series) -> str:
    accuracy = baseline["prompt_accuracy"]
    quality = f", and {100 * accuracy:.1f} % of the attributes asked for are read back from its images."
    if pd.isna(accuracy):
        quality = ". Prompt accuracy is not measured on these prompts: no relaxed method is ruled out by its images."
    return (
        f"On the {describe_prompts(baseline)} of the set {baseline['prompt_set']} at temperature "
        f"{baseline['temperature']:g} and guidance scale {baseline['cfg_scale']:g}, autoregressive decoding has "
        f"{baseline['nll']:.2f} nats per token{quality} {describe_target(baseline)}"
    )


def describe_prompts(row: Mapping[str, Any]) -> str:
    """Writes what a row's intervals are over: "96 prompts", or "96 prompts in 3 repeats"."""
    num_repeats = int(row["num_repeats"])
    prompts = f"{int(row['num_images']) // num_repeats} prompts"
    return prompts if num_repeats == 1 else f"{prompts} in {num_repeats} repeats"


def describe_target(row: Mapping[str, Any]) -> str:
    """Writes how good the target is: what has to be read beside every speed-up."""
    if pd.isna(row["target_cross_entropy"]):
        return "The target is a published one; it was not trained here, and its cross-entropy was not measured."
    return (
        f"The target itself stands at {row['target_cross_entropy']:.2f} nats per token on held-out images; an "
        "undertrained target flatters every speed-up."
    )


def _baseline_numbers(baseline: pd.Series) -> dict[str, str]:
    return {
        "prompt_set": str(baseline["prompt_set"]),
        "temperature": f"{baseline['temperature']:g}",
        "cfg_scale": f"{baseline['cfg_scale']:g}",
        "num_images": str(int(baseline["num_images"])),
        "prompts": describe_prompts(baseline),
        "target_cross_entropy": _format(baseline["target_cross_entropy"], "{:.2f}"),
        "num_timed": _format(baseline["num_timed"], "{:.0f}"),
        "autoregressive_latency_ms": _format(1000 * baseline["latency_s"], "{:.0f}"),
        "autoregressive_nll": _format(baseline["nll"], "{:.2f}"),
        "autoregressive_clip_score": _format(baseline["clip_score"], "{:.3f}"),
    }


def _best_numbers(kind: str, best: Best) -> dict[str, str]:
    return {
        f"{kind}_name": best.label,
        f"{kind}_speedup": _format(best.value("speedup"), "{:.2f}"),
        f"{kind}_interval": interval(best.value("speedup_low"), best.value("speedup_high")),
        f"{kind}_accepted": _format(best.value("mean_accepted_length"), "{:.2f}"),
        f"{kind}_nll": _format(best.value("nll"), "{:.2f}"),
    }


def _relaxed_texts(baseline: pd.Series, best: Best) -> dict[str, str]:
    """What the fastest relaxed row was chosen by, and what it costs, in words that hold without prompt accuracy too."""
    chosen_by = "" if pd.isna(baseline["prompt_accuracy"]) else f" {WITHIN} of autoregressive prompt accuracy"
    cost = _format(best.value("nll"), f"{{:.2f}} nats per token against {baseline['nll']:.2f}")
    if not pd.isna(best.value("prompt_accuracy_change")):
        cost += f" and a paired change of prompt accuracy of {_change_text(best)} points"
    return {"relaxed_kind": f"relaxed method{chosen_by}", "relaxed_cost": cost}


def _change_text(best: Best) -> str:
    """Paired change of prompt accuracy in points, with its interval where there is one."""
    change, low, high = (100 * best.value(f"prompt_accuracy_change{end}") for end in ("", "_low", "_high"))
    return _format(change, "{:+.1f}") + ("" if pd.isna(low) else f" [{low:+.1f}, {high:+.1f}]")


def _equality_numbers(summary: pd.DataFrame) -> dict[str, str]:
    """How many rows that must equal autoregressive decoding do, over all prompt sets, temperatures and repeats."""
    single = summary[summary["repeat"] != POOLED]
    rows, kept = single[_must_be_equal(single)], single[_keeps_tokens(single)]
    num_equal, num_ties = int((rows["tokens_equal_autoregressive"] == 1).sum()), int(rows["num_near_ties"].sum())
    text = "Exact: " if num_equal == len(rows) else "NOT exact: "
    text += "rows of exact methods that emit autoregressive decoding's tokens, one for one, in every image: "
    text += f"{num_equal} of {len(rows)} ({num_ties} images excepted for a near-tie)."
    if kept.empty:
        text = "No exact method was run whose tokens must equal autoregressive decoding's."
    elif rows.empty:
        text = _rounding_text(kept)
    return {"num_exact_rows": str(len(rows)), "num_equal_rows": str(num_equal), "equality_text": text}


def _rounding_text(rows: pd.DataFrame) -> str:
    """What stands in place of exactness where nothing was decoded in float32."""
    share, margin = 100 * rows["tokens_equal_autoregressive"].mean(), rows["margin_at_difference"].median()
    text = (
        "Decoded in bfloat16, where a forward over several nodes rounds otherwise than one over a single node: exact "
    )
    text += f"methods emit autoregressive decoding's tokens, one for one, in {share:.0f} % of the images"
    text += (
        "" if pd.isna(margin) else f"; where the others first part, the best two candidates are {margin:.2g} nats apart"
    )
    return text + ". Whether a method is exact is judged in float32."


def _format(value: float, template: str) -> str:
    return MISSING if pd.isna(value) else template.format(value)
