"""Divergence over the image: where does it leave the autoregressive one of the same noise, and at what cost in NLL?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lantern_pipeline.metrics.intervals import LEVEL, crossed_resamples, share_interval
from lantern_pipeline.metrics.repeats import KEYS, repeat_groups, stack_prompts
from lantern_pipeline.metrics.speed import BASELINE

CURVES = ("share_identical", "nll_excess")
DIVERGENCE_COLUMNS = (*KEYS, "position", *(name + end for name in CURVES for end in ("", "_low", "_high")))


def measure_divergence(
    images: pd.DataFrame,
    token_nll: Mapping[tuple[str, float, str], Mapping[str, np.ndarray]],
    prompt_ids: Mapping[tuple[str, float, str], Sequence[str]],
    *,
    settings: Mapping[str, Any],
    seed: int,
) -> pd.DataFrame:
    """Follows each method's images token by token, beside the autoregressive ones of the same noise.

    Two images of the same prompt and noise share their tokens up to the first difference; after it they are different
    draws, exact or not, so that the NLL excess of an exact method wanders around zero and only a relaxed one's drifts.

    `images` is `Quality.images`; `token_nll` and `prompt_ids` hold, of (prompt_set, temperature, repeat),
    `Quality.token_nll` and the prompt ids of its rows. Gives DIVERGENCE_COLUMNS, one row per KEYS x position: the share
    of images without a difference up to and including the position (exact intervals; with several repeats widened to
    the bootstrap's where that is wider), and the mean over images of the summed NLL up to and including it minus the
    autoregressive image's, nats, with bootstrap intervals over prompts and repeats.
    """
    frames = []
    for key, group in repeat_groups(images[images["first_difference"].notna()]):
        first = stack_prompts(group, "first_difference")  # (repeats, prompts)
        excess = np.stack(list(_excess_by_repeat(key, group, token_nll, prompt_ids)))  # (repeats, prompts, tokens)
        curves = _follow(first, excess, settings["bootstrap_resamples"], seed)
        frames.append(pd.DataFrame({**dict(zip(KEYS, key, strict=True)), **curves}))
    return pd.concat(frames, ignore_index=True)[list(DIVERGENCE_COLUMNS)]


def _excess_by_repeat(
    key: tuple[str, str, float, str],
    group: pd.DataFrame,
    token_nll: Mapping[tuple[str, float, str], Mapping[str, np.ndarray]],
    prompt_ids: Mapping[tuple[str, float, str], Sequence[str]],
) -> Iterator[np.ndarray]:
    """Cumulative NLL excess (prompts, tokens) of each repeat; repeats and prompts sorted, as `stack_prompts` does."""
    method_id, prompt_set, temperature = key[:3]
    for repeat in sorted(group["repeat"].unique()):
        place = (prompt_set, temperature, repeat)
        tokens, ids = token_nll.get(place, {}), list(prompt_ids.get(place, []))
        wanted = group.loc[group["repeat"] == repeat, "prompt_id"]
        if not {method_id, BASELINE} <= set(tokens) or sorted(ids) != sorted(wanted):
            raise ValueError(
                f"the tokens of {method_id} or {BASELINE} on {prompt_set} at temperature {temperature:g}, repeat "
                f"{repeat}, are not those of the table of images; measure quality again"
            )
        difference = np.asarray(tokens[method_id], np.float64) - np.asarray(tokens[BASELINE], np.float64)
        yield difference[np.argsort(ids)].cumsum(axis=1)


def _follow(first: np.ndarray, excess: np.ndarray, num_resamples: int, seed: int) -> dict[str, np.ndarray]:
    """The two curves of one method with their intervals, each (tokens,)."""
    num_repeats, num_prompts, num_tokens = excess.shape
    is_same = first[..., None] > np.arange(num_tokens)  # (repeats, prompts, tokens)
    both = np.concatenate([is_same, excess], axis=-1)
    ends = _bootstrap_means(both.reshape(num_repeats * num_prompts, -1), num_repeats, num_resamples, seed)
    low, high = share_interval(is_same.sum(axis=(0, 1)), num_repeats * num_prompts)
    if num_repeats > 1:
        low, high = np.minimum(low, ends[0, :num_tokens]), np.maximum(high, ends[1, :num_tokens])
    return {
        "position": np.arange(num_tokens),
        "share_identical": is_same.mean(axis=(0, 1)),
        "share_identical_low": low,
        "share_identical_high": high,
        "nll_excess": excess.mean(axis=(0, 1)),
        "nll_excess_low": ends[0, num_tokens:],
        "nll_excess_high": ends[1, num_tokens:],
    }


def _bootstrap_means(values: np.ndarray, num_repeats: int, num_resamples: int, seed: int) -> np.ndarray:
    """Ends of the 95 % intervals of the column means of (repeats * prompts, columns): (2, columns).

    The resamples are those of `bootstrap_interval`, written as weights: all columns then take one matrix product.
    """
    num_prompts = len(values) // num_repeats
    if num_prompts < 2:
        return np.full((2, values.shape[1]), np.nan)
    means = []
    for repeats, prompts in crossed_resamples(num_repeats, num_prompts, num_resamples, seed):
        weights = _count(repeats, num_repeats)[:, :, None] * _count(prompts, num_prompts)[:, None, :]
        means.append(weights.reshape(len(weights), -1) @ values / len(values))
    return np.quantile(np.concatenate(means), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)


def _count(chosen: np.ndarray, size: int) -> np.ndarray:
    """How often each of `size` numbers was drawn in each resample: (resamples, draws) -> (resamples, size) float64."""
    shifted = chosen + size * np.arange(len(chosen))[:, None]
    return np.bincount(shifted.ravel(), minlength=size * len(chosen)).reshape(len(chosen), size).astype(np.float64)
