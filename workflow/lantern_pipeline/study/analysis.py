"""What readers preferred: rates with intervals over readers and prompts, and what follows against one half."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t

from lantern_pipeline.metrics.intervals import share_interval
from lantern_pipeline.study.answers import Reader, last_of_each_reader, read_answers
from lantern_pipeline.study.page import CHECK, PAIR

LEVEL = 0.95
TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
FOR_BASELINE, FOR_METHOD, UNDECIDED = "autoregressive", "relaxed", "none"


@dataclass(frozen=True)
class Preferences:
    """What came out of a study.

    Attributes:
        table: one row per method; see `analyse_answers`.
        num_files: files read.
        num_repeated: files of a reader of whom a later file was there.
        num_inattentive: readers left out because of the attention checks.
        num_readers: readers that count.
        min_checks: share of the checks that a reader had to pass.
        num_checks: attention checks per reader.
        left: share of choices for the left image, with its exact interval as if choices were independent.
        seconds: median over readers of their median time per pair.
    """

    table: pd.DataFrame
    num_files: int
    num_repeated: int
    num_inattentive: int
    num_readers: int
    min_checks: float
    num_checks: int
    left: tuple[float, float, float]
    seconds: float


def analyse_answers(
    paths: Sequence[Path | str], key: Mapping[str, Any], *, min_checks: float, num_resamples: int = 1000, seed: int = 0
) -> Preferences:
    """Turns answer files into preference rates.

    Of a reader who saved more than once the last file counts. A reader who passes a smaller share of the attention
    checks than `min_checks` is left out.

    `Preferences`; its table has method_id, label, num_pairs, num_ties (pairs that were equal and not shown), num_shown,
    num_readers, num_judgements, share_autoregressive (+_low, _high), share_relaxed (+_low, _high), interval
    (crossed_bootstrap, clopper_pearson or none) and preferred (autoregressive, relaxed or none). Shares are of the
    judgements; shares and bounds are empty where no pair was shown. `paths`: answer files. `key`: key of the study.
    `min_checks`: share, in [0, 1]. `num_resamples`: bootstrap resamples.
    """
    if not paths:
        raise ValueError("the answers folder holds no .json file; put the files that readers saved into study.answers")
    files = [read_answers(path, key) for path in paths]
    readers = last_of_each_reader(files)
    checks = [name for name, trial in key["trials"].items() if trial["kind"] == CHECK]
    counted = [reader for reader in readers if np.mean([reader.is_baseline[i] for i in checks] or [1]) >= min_checks]
    if not counted:
        raise ValueError(
            f"none of the {len(readers)} readers passed {min_checks:.0%} of the {len(checks)} attention checks; "
            "collect more answers or lower study.min_checks"
        )
    rows = [_measure(method, key, counted, num_resamples, seed) for method in key["methods"]]
    is_left = np.array([list(reader.is_left.values()) for reader in counted])
    return Preferences(
        pd.DataFrame(rows),
        num_files=len(files),
        num_repeated=len(files) - len(readers),
        num_inattentive=len(readers) - len(counted),
        num_readers=len(counted),
        min_checks=min_checks,
        num_checks=len(checks),
        left=(float(is_left.mean()), *map(float, share_interval(is_left.sum(), is_left.size))),
        seconds=float(np.median([reader.seconds for reader in counted])),
    )


def preference_interval(chosen: np.ndarray, *, num_resamples: int = 1000, seed: int = 0) -> tuple[float, float, str]:
    """Computes the 95 % interval of a share of choices, for other readers and other prompts.

    With several readers and prompts both are resampled, each prompt for all readers at once. Such resampling counts the
    scatter of single choices three times, so its spread is scaled to the two-way clustered variance, which counts it
    once, and from the normal's tails to Student's for the degrees of freedom that this variance has. The interval is
    never narrower than the exact one of as many independent choices, which is also the answer for one reader or prompt.

    (low, high, "crossed_bootstrap" or "clopper_pearson"). `chosen`: (readers, prompts) bool. `num_resamples`: bootstrap
    resamples.

    Source:
        Owen (2007), The pigeonhole bootstrap, Annals of Applied Statistics 1(2), for the factor of three; Cameron,
        Gelbach and Miller (2011), Robust inference with multiway clustering, for the variance; Satterthwaite (1946) for
        its degrees of freedom.
    """
    chosen = np.asarray(chosen, dtype=np.float64)
    exact_low, exact_high = map(float, share_interval(chosen.sum(), chosen.size))
    if min(chosen.shape) < 2 or chosen.min() == chosen.max():
        return exact_low, exact_high, "clopper_pearson"
    num_readers, num_prompts = chosen.shape
    generator = np.random.Generator(np.random.PCG64(seed))
    readers = generator.multinomial(num_readers, [1 / num_readers] * num_readers, size=num_resamples)
    prompts = generator.multinomial(num_prompts, [1 / num_prompts] * num_prompts, size=num_resamples)
    means = ((readers @ chosen) * prompts).sum(axis=1) / chosen.size  # (resamples,)
    share, scale = chosen.mean(), _standard_error(chosen) / means.std()
    low, high = np.quantile(share + (means - share) * scale, TAILS)
    return max(0.0, min(float(low), exact_low)), min(1.0, max(float(high), exact_high)), "crossed_bootstrap"


def render_conclusion(preferences: Preferences) -> str:
    """Writes the outcome as Markdown: who read, a sentence for each method, what the numbers rest on."""
    readers = f"{preferences.num_readers} reader" + ("s" if preferences.num_readers != 1 else "")
    share, low, high = preferences.left
    lines = [
        "# Perceptual study",
        "",
        f"{readers} counted, from {preferences.num_files} files. Left out: {preferences.num_repeated} other copies of "
        f"a reader's answers, and {preferences.num_inattentive} readers who passed fewer than "
        f"{preferences.min_checks:.0%} of the {preferences.num_checks} attention checks.",
        "",
        *[f"- {row['label']}: {_sentence(row)}" for _, row in preferences.table.iterrows()],
        "",
        f"The left image was chosen in {share:.0%} of all pairs ({low:.0%} to {high:.0%}); sides were drawn at random. "
        f"A pair took {preferences.seconds:.1f} seconds in the median.",
        "",
        "Intervals hold 95 % and speak about other readers and other prompts. Each stands alone: with many methods one "
        "in twenty would miss 50 % by chance. Pairs that are equal in every token were not shown; they are no "
        "preference for either side.",
    ]
    return "\n".join(lines) + "\n"


def _sentence(row: Mapping[str, Any]) -> str:
    ties = f"{row['num_ties']} of {row['num_pairs']} pairs were equal and not shown"
    if not row["num_judgements"]:
        return f"no pair to judge ({ties})."
    words = {
        FOR_BASELINE: "readers prefer the autoregressive images",
        FOR_METHOD: "readers prefer the relaxed images",
        UNDECIDED: f"no detectable preference at n = {row['num_judgements']} judgements",
    }[row["preferred"]]
    return (
        f"{words}. The autoregressive image was chosen in {row['share_autoregressive']:.1%} of {row['num_judgements']} "
        f"judgements by {row['num_readers']} readers of {row['num_shown']} pairs, 95 % interval "
        f"{row['share_autoregressive_low']:.1%} to {row['share_autoregressive_high']:.1%}; {ties}."
    )


def _measure(
    method: Mapping[str, Any], key: Mapping[str, Any], readers: Sequence[Reader], num_resamples: int, seed: int
) -> dict[str, Any]:
    """One row of the table."""
    names = [
        name
        for name, trial in key["trials"].items()
        if trial["kind"] == PAIR and trial["method_id"] == method["method_id"]
    ]
    chosen = np.array([[reader.is_baseline[name] for name in names] for reader in readers])  # (readers, pairs)
    share, low, high, interval, preferred = (np.nan, np.nan, np.nan, "none", UNDECIDED)
    if names:
        share = float(chosen.mean())
        low, high, interval = preference_interval(chosen, num_resamples=num_resamples, seed=seed)
        preferred = FOR_BASELINE if low > 0.5 else FOR_METHOD if high < 0.5 else UNDECIDED
    shares = {"share_autoregressive": share, "share_autoregressive_low": low, "share_autoregressive_high": high}
    shares |= {"share_relaxed": 1 - share, "share_relaxed_low": 1 - high, "share_relaxed_high": 1 - low}
    counts = {"num_shown": len(names), "num_readers": len(readers), "num_judgements": chosen.size}
    return {**method, **counts, **shares, "interval": interval, "preferred": preferred}


def _standard_error(chosen: np.ndarray) -> float:
    """Standard error of the mean of (readers, prompts), both drawn at random, times Student's over the normal's tail.

    Its three variances are of reader means, of prompt means, and of what the two leave unexplained.
    """
    num_readers, num_prompts = chosen.shape
    reader_means, prompt_means = chosen.mean(axis=1, keepdims=True), chosen.mean(axis=0, keepdims=True)
    residual = chosen - reader_means - prompt_means + chosen.mean()
    freedom = np.array([num_readers - 1, num_prompts - 1, (num_readers - 1) * (num_prompts - 1)])
    parts = np.array(
        [
            reader_means.var(ddof=1) / num_readers,
            prompt_means.var(ddof=1) / num_prompts,
            (residual**2).sum() / freedom[2] / chosen.size,
        ]
    )
    variance = parts[0] + parts[1] - parts[2]
    if variance <= 0:
        return 0.0  # less scatter than of independent choices: the exact interval decides
    degrees = max(1.0, variance**2 / (parts**2 / freedom).sum())
    return float(np.sqrt(variance) * t.ppf(TAILS[1], degrees) / t.ppf(TAILS[1], np.inf))
