"""Made-up tables of five methods and of real images, as the pipeline's stages write and `build_summary` joins them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from lantern.methods import MethodSpec
from lantern_pipeline.data.tables import method_columns
from lantern_pipeline.tables.summary import TV_COLUMNS

NUM = 20
SETTINGS = {"bootstrap_resamples": 50, "headline_prompt_set": "seen", "headline_temperature": 1.0}
FIXED = {"frechet_distance": 9.0, "kernel_distance": 0.1, "precision": 0.8, "recall": 0.7}
CROSS_ENTROPY = {0: 3.9, 1: 4.1}


class Tables(NamedTuple):
    """Arguments of `build_summary`.

    Attributes:
        quality: one row per method.
        images: one row per image.
        latency: one row per timed image.
        total_variation: one row per relaxed method.
        cross_entropy: training seed -> cross-entropy of the target on held-out images, in nats.
    """

    quality: pd.DataFrame
    images: pd.DataFrame
    latency: pd.DataFrame
    total_variation: pd.DataFrame
    cross_entropy: dict[int, float]


def _lantern(delta, method_id):
    """Return LANTERN on a chain of five sampled drafts."""
    parts = {"tree": "chain5", "drafts": "sampled", "acceptance": "additive", "residual": "paper"}
    return MethodSpec.of("lantern", **parts, neighbours="l2_normalised", k=20, delta=delta, method_id=method_id)


# spec, forward passes per image of 64 tokens, NLL added, accuracy lost on the first five prompts, seconds per image
METHODS = {
    "autoregressive": (MethodSpec.of("autoregressive", method_id="autoregressive"), 64, 0.0, 0.0, 1.0),
    "eagle1": (MethodSpec.of("eagle1", tree="chain5", drafts="sampled", method_id="eagle1"), 32, 0.0, 0.0, 0.8),
    "coupled": (MethodSpec.of("coupled", tree="chain3", drafts="coupled", method_id="coupled"), 32, 0.0, 0.0, 0.7),
    "lantern-a": (_lantern(0.1, "lantern-a"), 20, 0.5, 0.04, 0.6),
    "lantern-b": (_lantern(0.4, "lantern-b"), 16, 1.0, 0.2, 0.4),
}


def make_tables(methods=METHODS, temperatures=(1.0,), has_scenes=True, repeat="s0n0", drift=0.0, dtype="float32"):
    """Return the tables that the stages of the pipeline write for one repeat of a run.

    Args:
        methods: method id -> the tuple that METHODS describes.
        temperatures: sampling temperatures.
        has_scenes: whether prompts have known objects, so that prompt accuracy is defined.
        repeat: name of the repeat: "s", training seed, "n", noise seed.
        drift: value added to NLL and total variation.
        dtype: dtype of the generating model.
    """
    generator = np.random.default_rng(0)
    nll, accuracy, ids = generator.normal(3.5 + drift, 0.2, NUM), np.full(NUM, 0.9), [f"p-{i:05d}" for i in range(NUM)]
    quality, images, latency, distances = [], [], [], []
    for temperature in temperatures:
        place = {"prompt_set": "seen", "temperature": temperature, "repeat": repeat}
        for method_id, (spec, forwards, worse, lost, seconds) in methods.items():
            head = {"method_id": method_id, **place}
            parts = method_columns(spec.to_dict())
            kept = (accuracy - lost * (np.arange(NUM) < 5)) if has_scenes else np.full(NUM, np.nan)
            is_equal = spec.is_exact and spec.drafts != "sampled"
            quality.append({**head, **parts, "cfg_scale": 3.0, "dtype": dtype, "num_images": NUM, **FIXED})
            counts = {"num_tokens": 64, "target_forwards": forwards, "substitutions": 2.0}
            exact = {"is_equal": is_equal, "is_near_tie": False, "margin_at_difference": np.nan if is_equal else 0.02}
            columns = {"nll": nll + worse, "clip_score": 0.9, "prompt_accuracy": kept, "is_all_correct": kept.round()}
            images.append(pd.DataFrame({**head, "prompt_id": ids, **counts, **exact, **columns}))
            timed = {**head, "stepping": "eager", "round": 0, "busy_elsewhere": 0.0, "machine": "a CPU"}
            for number, prompt_id in enumerate(ids[:6]):
                column = dict.fromkeys(("seconds", "cpu_seconds"), seconds * (1 + 0.01 * number))
                latency.append({**timed, "prompt_id": prompt_id, "target_forwards": forwards, **column})
            if not spec.is_exact:
                tv = {"tv_mean": 0.2 + drift, "tv_mean_low": 0.1 + drift, "tv_mean_high": 0.3 + drift, "tv_max": 0.5}
                distances.append({**head, **tv})
        head = {"method_id": "real", **place}
        quality.append({**head, "method": "real", "cfg_scale": 3.0, "num_images": NUM, **FIXED})
        columns = {"nll": np.nan, "clip_score": 0.95, "prompt_accuracy": 0.97, "is_all_correct": 0.0}
        images.append(pd.DataFrame({**head, "prompt_id": ids, **columns}))
    distances = pd.DataFrame(distances).reindex(columns=["method_id", *place, *TV_COLUMNS])
    return Tables(
        pd.DataFrame(quality), pd.concat(images, ignore_index=True), pd.DataFrame(latency), distances, CROSS_ENTROPY
    )


def join(*parts):
    """Concatenate the tables of several repeats."""
    tables = zip(*(part[:-1] for part in parts), strict=True)
    return Tables(*(pd.concat(same, ignore_index=True) for same in tables), CROSS_ENTROPY)


def with_changes(**changes):
    """Return METHODS with other values for some methods.

    Args:
        changes: method id with underscores -> (forward passes per image, NLL added, accuracy lost, seconds per image).
    """
    return {name: (value[0], *changes.get(name.replace("-", "_"), value[1:])) for name, value in METHODS.items()}
