"""Speed: tokens per forward pass of the target. At batch 1 also latency, relative step cost and speed-up.

speed-up = tokens per forward pass / relative step cost. The *relative step cost* is the time per forward pass, with
drafting and verification, divided by the time of an autoregressive step. Tokens per forward pass are the same on other
machines. Step cost and speed-up are not, because machines differ in how much longer a step takes if it has more tokens.

Some papers count only the accepted drafts of a forward pass, which gives one less. A step costs at least as much as an
autoregressive one, so the speed-up is at most the tokens per forward pass.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from lantern_pipeline.measure.columns import with_ends
from lantern_pipeline.measure.intervals import LEVEL, bootstrap_interval, crossed_resamples, ratio_statistic
from lantern_pipeline.measure.repeats import KEYS, repeat_groups, stack_prompts

BASELINE = "autoregressive"
SPEEDS = ("latency_s", "relative_step_cost", "speedup")


def tokens_per_forward(
    num_tokens: np.ndarray, target_forwards: np.ndarray, *, num_resamples: int = 1000, seed: int = 0
) -> dict[str, float]:
    """Compute it with its 95 % interval. The arguments are per image, (prompts,) or (repeats, prompts)."""
    num_tokens, target_forwards = np.asarray(num_tokens), np.asarray(target_forwards)
    low, high = bootstrap_interval(ratio_statistic, num_tokens, target_forwards, num_resamples=num_resamples, seed=seed)
    return {
        # The prefill counts as a forward pass, so that autoregressive decoding has exactly 1.
        "tokens_per_forward": float(num_tokens.sum() / target_forwards.sum()),
        "tokens_per_forward_low": low,
        "tokens_per_forward_high": high,
    }


def summarise_latency(latency: pd.DataFrame, *, num_resamples: int = 1000, seed: int = 0) -> pd.DataFrame:
    """Compute SPEEDS of every method from the fastest round of each prompt.

    The argument has one row per method, prompt and round, with the columns that `pair_latency` needs. The result has
    one row per group of `repeat_groups`. SPEEDS have 95 % intervals over prompts, rounds and repeats.

    - latency_s: mean time of an image in seconds.
    - speedup_cpu: speed-up computed from the process's CPU seconds instead of wall-clock time.
    - busy_elsewhere: mean number of cores that other processes kept busy.
    """
    rows = []
    for key, group in repeat_groups(pair_latency(latency)):
        names = ("seconds", "baseline", "target_forwards", "baseline_forwards", "cpu_seconds", "cpu_baseline")
        keys = ("repeat", "round", "prompt_id")
        *times, cpu_seconds, cpu_baseline = (stack_prompts(group, name, keys) for name in names)
        seconds = times[0]  # (repeats, rounds, prompts), as all others; the four `times` are the arguments of `_speeds`
        found = [_speeds(*times)]
        num_repeats, num_rounds, num_prompts = seconds.shape
        # Rounds are resampled as well, by a generator of their own, so that their number does not change the sampled
        # prompts and repeats.
        of_rounds = np.random.Generator(np.random.PCG64([seed, 2]))
        for repeats, prompts in crossed_resamples(num_repeats, num_prompts, num_resamples, seed):
            rounds = of_rounds.integers(0, num_rounds, (len(repeats), num_rounds))
            for chosen in zip(repeats, rounds, prompts, strict=True):
                found.append(_speeds(*(part[np.ix_(*chosen)] for part in times)))
        ends = np.quantile(found[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
        # One prompt says nothing about the variation between prompts.
        if num_prompts < 2:
            ends[:] = np.nan
        values = np.stack([found[0], *ends]).T.flatten()  # value, lower and upper end of each speed, as `with_ends`
        row = {**dict(zip(KEYS, key, strict=True)), **dict(zip(with_ends(*SPEEDS), values, strict=True))}
        row["speedup_cpu"] = _speeds(cpu_seconds, cpu_baseline, *times[2:])[-1]  # [2:] are the forward passes
        row |= {"num_timed": num_repeats * num_prompts, "busy_elsewhere": group["busy_elsewhere"].mean()}
        rows.append({**row, "machine": ", ".join(sorted(group["machine"].unique()))})
    return pd.DataFrame(rows)


def _speeds(
    seconds: np.ndarray, baseline: np.ndarray, forwards: np.ndarray, baseline_forwards: np.ndarray
) -> tuple[float, float, float]:
    """Return SPEEDS from times and numbers of forward passes, (repeats, rounds, prompts)."""
    least, baseline = seconds.min(axis=1), baseline.min(axis=1)  # the fastest rounds, (repeats, prompts)
    # Every round decodes the same images, so the forward passes are those of round 0.
    step_cost = (least.sum() / forwards[:, 0].sum()) / (baseline.sum() / baseline_forwards[:, 0].sum())
    return least.mean(), step_cost, baseline.sum() / least.sum()


def pair_latency(latency: pd.DataFrame) -> pd.DataFrame:
    """Join each timing with columns baseline, cpu_baseline and baseline_forwards of autoregressive decoding.

    These are seconds, cpu_seconds and target_forwards for the same prompt and round. Column stepping ("eager" or
    "graph") is optional. If a method was timed in both ways, only the timing of the graph is kept.
    """
    if "stepping" in latency.columns:
        is_eager = latency["stepping"] == "eager"
        # Eager rows stay only where all rows of a group are eager.
        latency = latency[
            is_eager == is_eager.groupby([latency[name] for name in (*KEYS, "prompt_id")]).transform("all")
        ]
    # Methods took turns image by image, so the machine had the same load during both timings.
    turn = ["prompt_set", "temperature", "repeat", "prompt_id", "round"]
    baseline = latency[latency["method_id"] == BASELINE].set_index(turn)[["seconds", "cpu_seconds", "target_forwards"]]
    baseline.columns = ["baseline", "cpu_baseline", "baseline_forwards"]
    return latency.join(baseline, on=turn, validate="many_to_one")
