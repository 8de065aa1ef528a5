"""Quality of generated images: every quality metric of every method on one prompt set at one temperature."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from lantern.prompts import Prompt
from lantern.records import GenerationRecords
from lantern_pipeline.analysis.method_labels import method_columns
from lantern_pipeline.data.image_files import decode_images
from lantern_pipeline.data.image_sources import ImageSource
from lantern_pipeline.metrics.evaluate_images import (
    ImageScores,
    Rulers,
    chunks,
    concatenate_scores,
    score_codes,
    score_images,
    score_records,
)
from lantern_pipeline.metrics.fidelity import Comparison
from lantern_pipeline.metrics.losslessness import Equality, compare_with_autoregressive
from lantern_pipeline.metrics.registry import CEILINGS, REAL, RECONSTRUCTION
from lantern_pipeline.metrics.speed import BASELINE

MEANS = {
    "nll": "nll",
    "clip_score": "clip_score",
    "prompt_accuracy": "prompt_accuracy",
    "is_all_correct": "all_correct",
}
OF_DECODING = ("pixel_mse",)  # of images of methods alone: no mean in a row


@dataclass(frozen=True)
class Quality:
    """What `measure_quality` found.

    Attributes:
        rows: one row per method and ceiling: method_id, prompt_set, temperature, repeat, the method's parts and
            parameters, cfg_scale, num_images, the quality metrics (FID, KID, precision and recall with `_low` and
            `_high`), tokens_equal_autoregressive and num_near_ties; and what the numbers are of: prompts_sha256,
            reference, num_reference and, of each metric, `_extractor` and `_weights_sha256`. A metric that is off is
            nan in every row.
        images: one row per method or ceiling x prompt: what was measured on that image. `first_difference` is the
            position of the first token that differs from the autoregressive image of the same prompt and noise (the
            number of tokens where none does), `pixel_mse` and `feature_distance` the distances from that image, the
            latter nan where sets are measured without the attribute classifier.
        token_nll: method_id -> (prompts, tokens) float32, nats per token.
    """

    rows: pd.DataFrame
    images: pd.DataFrame
    token_nll: dict[str, Tensor]


@torch.inference_mode()
def measure_quality(
    records: Mapping[str, GenerationRecords],
    prompts: Sequence[Prompt],
    source: ImageSource | None,
    rulers: Rulers,
    *,
    settings: Mapping[str, Any],
    prompt_set: str,
    split: str,
    repeat: str,
    seed: int,
) -> Quality:
    """Measures all methods on one prompt set at one temperature, and the two ceilings.

    The reference of FID, KID, precision and recall on the attribute classifier's features: reconstructions of held-out
    images of `split` that belong to none of the prompts (a folder with too few held-out images repeats them). The
    ceilings are as many images as there are prompts: "real" and "reconstruction", with their own captions.

    Args:
        records: method_id -> its records; all of one temperature and guidance scale, of the same prompts.
        prompts: the prompt set, in the order of the records.
        source: of held-out images; None where there are none: no ceilings then.
        rulers: measuring models.
        settings: config section `metrics`.
        prompt_set: its name, for the tables.
        split: the source's split that the prompts are of; "val" for prompts from a file.
        repeat: name of the training seed and noise seed, for the tables.
        seed: of KID's subsets and of the resampling behind the intervals.

    Returns:
        A `Quality`.

    Raises:
        ValueError: no autoregressive records, records whose prompt ids are not those of `prompts`, or a reference of
            held-out images without a source of them.
    """
    scores = score_records(records, prompts, rulers, settings)
    baseline = records[BASELINE]
    reference = _Reference(_prepare_reference(source, rulers, split, len(prompts), settings, seed))
    place = {"prompt_set": prompt_set, "temperature": baseline.metadata["temperature"], "repeat": repeat}
    measured_with = {**reference.describe(), **rulers.describe()}
    rows, images, token_nll, of_baseline = [], [], {}, scores[BASELINE]
    for method_id, record in records.items():
        found = scores[method_id]
        token_nll[method_id] = found.token_nll
        head = {"method_id": method_id, **place}
        equality = compare_with_autoregressive(
            record.codes, baseline.codes, baseline.margins, settings["near_tie_margin"]
        )
        exactness = {"tokens_equal_autoregressive": equality.share_equal, "num_near_ties": equality.num_near_ties}
        values = {**_mean_scores(found), **reference.compare(found), **exactness}
        rows.append({**head, **_parameters(record), **values, **hash_prompts(prompts), **measured_with})
        distance = reference.distance(found, of_baseline)
        columns = {**_speed_columns(record), **_equality_columns(equality), "feature_distance": distance}
        ids = [prompt.id for prompt in prompts]
        images.append(_to_frame({**head, "prompt_id": ids}, found, columns))
    cfg_scale = baseline.metadata["cfg_scale"]
    for name, ceiling in _score_ceilings(source, rulers, split, len(prompts), settings, cfg_scale).items():
        own, head = source.prompts(split, len(prompts)), {"method_id": name, **place}
        common = {**head, "method": name, "cfg_scale": cfg_scale, "num_images": len(prompts)}
        values = {**_mean_scores(ceiling), **reference.compare(ceiling)}
        rows.append({**common, **values, **hash_prompts(own), **measured_with})
        images.append(_to_frame({**head, "prompt_id": [prompt.id for prompt in own]}, ceiling, {}))
    return Quality(pd.DataFrame(rows), pd.concat(images, ignore_index=True), token_nll)


def hash_prompts(prompts: Sequence[Prompt]) -> dict[str, str]:
    """Hashes ids and texts of prompts in their order, as a column: rows of other prompts must not be compared."""
    lines = (json.dumps([prompt.id, prompt.text], ensure_ascii=False) + "\n" for prompt in prompts)
    return {"prompts_sha256": hashlib.sha256("".join(lines).encode()).hexdigest()}


class _Reference:
    """The reference set; methods that made the same images are compared with it once."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        self.measured: dict[bytes, dict[str, float]] = {}

    def describe(self) -> dict[str, Any]:
        """Columns of a row."""
        return dict(self.comparison.describe())

    def compare(self, scores: ImageScores) -> dict[str, float]:
        """FID, KID, precision and recall of some images."""
        key = hashlib.sha256(scores.features.numpy()).digest()
        if key not in self.measured:
            self.measured[key] = self.comparison.compare(scores.features)
        return self.measured[key]

    def distance(self, scores: ImageScores, others: ImageScores) -> Tensor:
        """Distance of images from others of the same prompts (images,)."""
        return self.comparison.distance(scores.features, others.features)


def _prepare_reference(
    source: ImageSource | None, rulers: Rulers, split: str, first: int, settings: Mapping[str, Any], seed: int
) -> Comparison:
    """Prepares the ruler's reference; the held-out images begin at number `first`, behind those of the prompts."""
    name = f"reconstructions of {split} images from {first} on"
    return rulers.of_sets.prepare(_reconstruct(source, rulers, split, first, settings), name, settings, seed)


def _reconstruct(
    source: ImageSource | None, rulers: Rulers, split: str, first: int, settings: Mapping[str, Any]
) -> Iterator[Tensor]:
    """Batches of reconstructions (images, 3, S, S); drawn only when a ruler asks for them."""
    if source is None:
        raise ValueError(
            "metrics.fidelity attribute classifier compares with held-out images, and data.source gives none"
        )
    for indices in chunks(first, first + settings["num_reference"], settings["batch_size"], "reference"):
        codes = rulers.tokenizer.encode(source.images(split, indices).to(rulers.device))
        yield decode_images(rulers.tokenizer, codes, len(codes))


def _score_ceilings(
    source: ImageSource | None,
    rulers: Rulers,
    split: str,
    num_images: int,
    settings: Mapping[str, Any],
    cfg_scale: float,
) -> dict[str, ImageScores]:
    """Scores real images of the split and their reconstructions against their own captions; nothing without any."""
    if source is None:
        return {}
    prompts = source.prompts(split, num_images)
    parts: dict[str, list[ImageScores]] = {name: [] for name in CEILINGS}
    for indices in chunks(0, num_images, settings["batch_size"], "ceilings"):
        images, chosen = source.images(split, indices).to(rulers.device), prompts[indices.start : indices.stop]
        codes = rulers.tokenizer.encode(images)
        parts[REAL].append(score_images(images, chosen, rulers, torch.empty(len(chosen), 0)))
        parts[RECONSTRUCTION].append(score_codes(codes, chosen, rulers, cfg_scale))
    return {name: concatenate_scores(part) for name, part in parts.items()}


def _mean_scores(scores: ImageScores) -> dict[str, float]:
    """Means over the images that have a value; nan where none has."""
    names = {**MEANS, **{name: name for name in scores.columns if name not in (*MEANS, *OF_DECODING)}}
    return {new: float(scores.columns[name].nanmean()) for name, new in names.items()}


def _parameters(record: GenerationRecords) -> dict[str, Any]:
    """The method's parts and parameters and what the run adds: the identifying columns of a row."""
    found = record.metadata
    return {
        **method_columns(found["method"]),
        "cfg_scale": found["cfg_scale"],
        "dtype": found["dtype"],
        "num_images": len(record),
    }


def _speed_columns(record: GenerationRecords) -> dict[str, Tensor]:
    """Counts per image."""
    return {
        "num_tokens": torch.full((len(record),), record.codes.shape[1]),
        "target_forwards": record.target_forwards,
        "substitutions": record.substitutions,
        "seconds_in_batch": record.seconds,
    }


def _equality_columns(equality: Equality) -> dict[str, Tensor]:
    return {
        "is_equal": equality.is_equal,
        "is_near_tie": equality.is_near_tie,
        "first_difference": equality.first_difference,
        "margin_at_difference": equality.margin_at_difference,
    }


def _to_frame(head: Mapping[str, Any], scores: ImageScores, others: Mapping[str, Tensor]) -> pd.DataFrame:
    columns = {name: column.numpy() for name, column in {**others, **scores.columns}.items()}
    return pd.DataFrame({**head, **columns})
