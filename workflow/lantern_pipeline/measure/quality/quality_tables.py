"""All quality metrics of every method, on one prompt set at one temperature.

*Ceilings* are images that no method generated, and than which no method can be expected to be better: real images
("real"), held out from training, and their reconstructions ("reconstruction"), which the tokenizer has encoded and
decoded. Both are compared with their own captions, not with the prompts.

FID and other metrics of sets of images compare with a *reference set*. If they use Inception's features, the metric
model has this set. Otherwise it consists of reconstructions of further held-out images, which belong to no prompt.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor

from lantern.prompts import Prompt
from lantern.records import GenerationRecords
from lantern_pipeline.data.image_files import decode_images
from lantern_pipeline.data.image_sources import ImageSource
from lantern_pipeline.data.tables import method_columns
from lantern_pipeline.measure.exactness.losslessness import Equality, compare_with_autoregressive
from lantern_pipeline.measure.quality.evaluate_images import (
    ImageScores,
    MethodScores,
    chunks,
    concatenate_scores,
    score_codes,
    score_images,
)
from lantern_pipeline.measure.quality.fidelity import ReconstructionFidelity
from lantern_pipeline.measure.quality.metric_models import MetricModels
from lantern_pipeline.measure.quality.reference_statistics import Reference
from lantern_pipeline.measure.registry import CEILINGS, IMAGES, REAL, RECONSTRUCTION, metrics_over, off_value
from lantern_pipeline.measure.speed.speedups import BASELINE
from lantern_pipeline.schema.run_config import FidelitySettings


@torch.inference_mode()
def measure_quality(
    records: Mapping[str, GenerationRecords],
    scores: Mapping[str, MethodScores],
    prompts: Sequence[Prompt],
    source: ImageSource | None,
    models: MetricModels,
    *,
    settings: FidelitySettings,
    prompt_set: str,
    split: str,
    repeat: str,
    seed: int,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Measure all methods and the ceilings.

    Args:
        records: method id -> generated images, at one temperature and guidance scale, in the order of `prompts`.
        scores: method id -> scores of these images, from `score_method`.
        source: source of held-out images. None if the run has no such images. Then ceilings are left out.
        split: split of `source` that the prompts come from. "val" for prompts from a file.
        repeat: name of the repeat, which states the training seed and the noise seed, such as "s0n0".
        seed: random seed of KID's subsets.

    Returns:
        (rows, images): tables with one row per method or ceiling, and one row per image. `rows` also identifies the
        prompts, the reference set, and the metric models. Its columns clip_num_cut and hps_num_cut are the numbers of
        prompts that the CLIP models do not read to their end.
    """
    baseline, of_baseline = records[BASELINE], scores[BASELINE].scores
    references = make_references(source, models, split, len(prompts), settings)
    place = {"prompt_set": prompt_set, "temperature": baseline.metadata["temperature"], "repeat": repeat}
    of_references = [reference.columns for reference in references.values()]
    # The same in all rows: reference sets and metric models.
    measured_with = {name: value for part in (*of_references, models.describe()) for name, value in part.items()}
    num_cut = models.count_cut(prompts)
    rows, images = [], []
    for method_id, record in records.items():
        found = scores[method_id].complete(of_baseline)
        head = {"method_id": method_id, **place}
        equality = compare_with_autoregressive(record.codes, baseline.codes, baseline.margins)
        exactness = {"tokens_equal_autoregressive": equality.share_equal, "num_near_ties": equality.num_near_ties}
        values = {**_mean_scores(found), **compare_sets(found, references, settings, seed), **exactness}
        rows.append({**head, **_parameters(record), **values, **num_cut, **hash_prompts(prompts), **measured_with})
        columns = {**_speed_columns(record), **_equality_columns(equality)}
        # Distances of single images are those from the autoregressive image of the same prompt and noise.
        for key, reference in references.items():
            columns |= reference.distances(found.features[key], of_baseline.features[key])
        images.append(_to_frame({**head, "prompt_id": [prompt.id for prompt in prompts]}, found, columns))
    cfg_scale = baseline.metadata["cfg_scale"]
    own = source.prompts(split, len(prompts)) if source is not None else []  # a folder may have fewer
    ceilings = _score_ceilings(source, own, models, split, cfg_scale) if source is not None else {}
    for name, ceiling in ceilings.items():
        head = {"method_id": name, **place}
        common = {**head, "method": name, "cfg_scale": cfg_scale, "num_images": len(own)}
        values = {**_mean_scores(ceiling), **compare_sets(ceiling, references, settings, seed), **models.count_cut(own)}
        rows.append({**common, **values, **hash_prompts(own), **measured_with})
        images.append(_to_frame({**head, "prompt_id": [prompt.id for prompt in own]}, ceiling, {}))
    return pd.DataFrame(rows), pd.concat(images, ignore_index=True)


def hash_prompts(prompts: Sequence[Prompt]) -> dict[str, str]:
    """Return column prompts_sha256 of ids and texts in order. Rows in which it differs must not be compared."""
    lines = (json.dumps([prompt.id, prompt.text], ensure_ascii=False) + "\n" for prompt in prompts)
    return {"prompts_sha256": hashlib.sha256("".join(lines).encode()).hexdigest()}


def make_references(
    source: ImageSource | None, models: MetricModels, split: str, first: int, settings: FidelitySettings
) -> dict[str, Reference]:
    """Return key of config section `metrics` -> reference set, of images from index `first` on."""
    # The images before index `first` are those of the prompts.
    name, found = f"reconstructions of {split} images from {first} on", {}
    for key, part in models.of_sets.items():
        if not isinstance(part, ReconstructionFidelity):
            if part.real is not None:
                found[key] = part.real
        elif source is None:
            raise ValueError(
                f"metrics.{key} compares with held-out images, which only data.source scenes, fashion and folder have; "
                f"choose one of these, or set metrics.{key} to {off_value(key)}"
            )
        else:
            found[key] = part.reference(_reconstruct(source, models, split, first, settings), name)
    return found


def compare_sets(
    scores: ImageScores, references: Mapping[str, Reference], settings: FidelitySettings, seed: int
) -> dict[str, float]:
    """Compare the images with each reference set by its own features, and return column -> value."""
    parts = [reference.compare(scores.features[key], settings, seed) for key, reference in references.items()]
    return {name: value for part in parts for name, value in part.items()}


def _reconstruct(
    source: ImageSource, models: MetricModels, split: str, first: int, settings: FidelitySettings
) -> Iterator[Tensor]:
    # If a folder has too few images, the source repeats them.
    for indices in chunks(first, first + settings.num_reference, models.batch_size, "reference"):
        codes = models.tokenizer.encode(source.images(split, indices).to(models.device))
        yield decode_images(models.tokenizer, codes, len(codes))


def _score_ceilings(
    source: ImageSource, prompts: Sequence[Prompt], models: MetricModels, split: str, cfg_scale: float
) -> dict[str, ImageScores]:
    parts: dict[str, list[ImageScores]] = {name: [] for name in CEILINGS}
    for indices in chunks(0, len(prompts), models.batch_size, "ceilings"):
        images, chosen = source.images(split, indices).to(models.device), prompts[indices.start : indices.stop]
        codes = models.tokenizer.encode(images)
        # Real images have no codes, hence no likelihood.
        parts[REAL].append(score_images(images, chosen, models, torch.full((len(chosen),), torch.nan)))
        parts[RECONSTRUCTION].append(score_codes(codes, chosen, models, cfg_scale))
    return {name: concatenate_scores(part) for name, part in parts.items()}


def _mean_scores(scores: ImageScores) -> dict[str, float]:
    """Return the mean of each metric over the images that have a value; nan if no image has one."""
    metrics = {metric.per_image: metric for metric in metrics_over(IMAGES)}
    unknown = sorted(set(scores.columns) - set(metrics))
    if unknown:
        raise ValueError(f"the column {unknown[0]} is measured but has no row in measure.registry.METRICS; add one")
    found = {metric.column: scores.columns[name] for name, metric in metrics.items() if name in scores.columns}
    # Distances from the autoregressive image are only in the table with one row per image.
    distances = {metric.column for metric in metrics.values() if metric.is_distance}
    return {name: float(column.nanmean()) for name, column in found.items() if name not in distances}


def _parameters(record: GenerationRecords) -> dict[str, object]:
    found = record.metadata
    return {
        **method_columns(found["method"]),
        "cfg_scale": found["cfg_scale"],
        "dtype": found["dtype"],
        "num_images": len(record),
    }


def _speed_columns(record: GenerationRecords) -> dict[str, Tensor]:
    return {
        "num_tokens": torch.full((len(record),), record.codes.shape[1]),
        "target_forwards": record.target_forwards,
        "substitutions": record.substitutions,
        # The image's share of the decoding time of its batch, not its latency at batch 1.
        "seconds_in_batch": record.seconds,
    }


def _equality_columns(equality: Equality) -> dict[str, Tensor]:
    return {
        "is_equal": equality.is_equal,
        "is_near_tie": equality.is_near_tie,
        "margin_at_difference": equality.margin_at_difference,
    }


def _to_frame(head: Mapping[str, object], scores: ImageScores, others: Mapping[str, Tensor]) -> pd.DataFrame:
    columns = {name: column.numpy() for name, column in {**others, **scores.columns}.items()}
    return pd.DataFrame({**head, **columns})
