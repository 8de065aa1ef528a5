"""Scores of single images: likelihood under the target, chosen metrics, and distance from the autoregressive image.

The *autoregressive image* that belongs to an image was decoded autoregressively, with the same prompt and noise. Exact
methods whose drafts are compared with the target's sample emit the same codes. So only images that differ from their
autoregressive image are scored, and the scores of the others are copied from it.

Images are float32 (images, 3, height, width) in [-1, 1], and *pixels* are the same in [0, 1].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from lantern.io import DamagedFileError, load_tensors, save_tensors
from lantern.prompts import Prompt
from lantern.records import GenerationRecords
from lantern_pipeline.data.image_files import decode_images
from lantern_pipeline.measure.exactness.likelihood import score_tokens
from lantern_pipeline.measure.quality.metric_models import MetricModels
from lantern_pipeline.measure.speed.speedups import BASELINE


@dataclass(frozen=True)
class ImageScores:
    """Measurements of single images.

    Attributes:
        features: key of config section `metrics` -> features of its network, float32 (images, width). Empty if no
            metric of whole sets of images is on.
        columns: name of a table column (`Metric.per_image`) -> scores, float32 (images,). Column nll is the negative
            log-likelihood in nats, a mean over the codes of an image, nan for images without codes. `score_method` adds
            column pixel_mse, the mean squared difference of pixels from the autoregressive image.
    """

    features: dict[str, Tensor]
    columns: dict[str, Tensor]

    def select(self, rows: Tensor) -> ImageScores:
        """Return a copy with the scores of the images with the indices `rows`, int64."""
        parts = ({name: values[rows] for name, values in part.items()} for part in (self.features, self.columns))
        return ImageScores(*parts)


@dataclass(frozen=True)
class MethodScores:
    """Scores of the images of a method that were scored: for autoregressive decoding, these are all.

    Attributes:
        prompts: their indices, int64 (images,).
        made_from: hash of all that the scores depend on, such as the images. Empty if nobody asks for it.
    """

    method_id: str
    prompts: Tensor
    scores: ImageScores
    made_from: str = ""

    def complete(self, baseline: ImageScores) -> ImageScores:
        """Return the scores of all images in the order of the prompts. `baseline` has the autoregressive ones."""
        # The copy is changed in place.
        found = baseline.select(torch.arange(len(baseline.columns["nll"])))
        for name, features in self.scores.features.items():
            found.features[name][self.prompts] = features
        for name, column in self.scores.columns.items():
            found.columns[name][self.prompts] = column
        return found


def save_scores(path: Path, methods: Iterable[MethodScores]) -> None:
    """Write the scores of methods to one safetensors file."""
    # safetensors has no nested names: a tensor is named as in jacobi.features.fidelity. The metadata lists the names.
    tensors, heads = {}, {}
    for found in methods:
        parts = {"features": found.scores.features, "columns": found.scores.columns}
        named = {f"{part}.{name}": tensor for part, values in parts.items() for name, tensor in values.items()}
        tensors |= {f"{found.method_id}.{name}": tensor for name, tensor in {"prompts": found.prompts, **named}.items()}
        names = {part: [*values] for part, values in parts.items()}
        heads[found.method_id] = {"made_from": found.made_from, **names}
    save_tensors(path, tensors, {"kind": "image_scores", "methods": heads})


def load_scores(path: Path) -> dict[str, MethodScores]:
    """Read scores that `save_scores` wrote, by method id. A damaged file raises a DamagedFileError."""
    tensors, metadata = load_tensors(path)
    if metadata.get("kind") != "image_scores":
        raise DamagedFileError(path, "holds no scores of images")
    found = {}
    for method_id, head in metadata["methods"].items():
        parts = (
            {name: tensors[f"{method_id}.{part}.{name}"] for name in head[part]} for part in ("features", "columns")
        )
        prompts = tensors[f"{method_id}.prompts"]
        found[method_id] = MethodScores(method_id, prompts, ImageScores(*parts), head["made_from"])
    return found


@torch.inference_mode()
def score_method(
    records: GenerationRecords,
    baseline: GenerationRecords,
    prompts: Sequence[Prompt],
    models: MetricModels,
) -> MethodScores:
    """Score the images of a method. Both records have the images of `prompts`, in this order."""
    method_id = records.metadata["method"]["method_id"]
    is_baseline = method_id == BASELINE
    differs = (
        torch.ones(len(prompts), dtype=torch.bool) if is_baseline else (records.codes != baseline.codes).any(dim=1)
    )
    models.count_cut(prompts)  # warns of all of them together
    chosen, cfg_scale = differs.nonzero().flatten(), baseline.metadata["cfg_scale"]
    parts = []
    # Batch by batch, so that at most two batches of decoded images are in memory.
    for numbers in chunks(0, len(chosen), models.batch_size, "images"):
        rows = chosen[numbers.start : numbers.stop]
        codes, others = (found.codes[rows].long().to(models.device) for found in (records, baseline))
        scores, pixels = score_decoded(codes, [prompts[row] for row in rows.tolist()], models, cfg_scale)
        # An autoregressive image is its own partner, at distance 0.
        partners = pixels if is_baseline else _to_pixels(decode_images(models.tokenizer, others, len(others)))
        scores.columns["pixel_mse"] = pixel_mse(pixels, partners)
        parts.append(scores)
    return MethodScores(method_id, chosen, concatenate_scores(parts))


def score_records(
    records: Mapping[str, GenerationRecords], prompts: Sequence[Prompt], models: MetricModels
) -> dict[str, ImageScores]:
    """Return method id -> scores of all images, as `MethodScores.complete`. One method must be autoregressive."""
    baseline = records[BASELINE]
    parts = {name: score_method(record, baseline, prompts, models) for name, record in records.items()}
    return {name: part.complete(parts[BASELINE].scores) for name, part in parts.items()}


def score_codes(codes: Tensor, prompts: Sequence[Prompt], models: MetricModels, cfg_scale: float) -> ImageScores:
    """Score one batch of images that are given as codes, (images, tokens), on any device."""
    return score_decoded(codes.to(models.device), prompts, models, cfg_scale)[0]


def score_decoded(
    codes: Tensor, prompts: Sequence[Prompt], models: MetricModels, cfg_scale: float
) -> tuple[ImageScores, Tensor]:
    """Return the scores and the pixels of one batch of codes, which must be on the device of the models."""
    texts = [prompt.text for prompt in prompts]
    token_nll = score_tokens(
        models.target_model, models.text_encoder, codes, texts, cfg_scale=cfg_scale, batch_size=len(texts)
    )
    images = decode_images(models.tokenizer, codes, len(codes))
    return score_images(images, prompts, models, token_nll.mean(dim=1)), _to_pixels(images)


def score_images(images: Tensor, prompts: Sequence[Prompt], models: MetricModels, nll: Tensor) -> ImageScores:
    """Score one batch of images, whose column `nll` the caller knows. Real images have none, hence nan."""
    columns = {"nll": nll}
    for part in models.scores:
        columns |= part.score(images, prompts)
    features = {key: part.extract(images) for key, part in models.of_sets.items()}
    return ImageScores(features, columns)


def pixel_mse(pixels: Tensor, others: Tensor) -> Tensor:
    """Return the mean squared difference of pixels from those of another set, (images,) on the CPU."""
    return (pixels - others).square().flatten(1).mean(dim=1).cpu()


def concatenate_scores(parts: Sequence[ImageScores]) -> ImageScores:
    """Join the scores of batches that have the same columns."""
    if not parts:  # all images of the method equal their autoregressive images
        return ImageScores({}, {})
    return ImageScores(
        {key: torch.cat([part.features[key] for part in parts]) for key in parts[0].features},
        {name: torch.cat([part.columns[name] for part in parts]) for name in parts[0].columns},
    )


def chunks(first: int, last: int, size: int, name: str) -> tqdm:
    """Iterate over ranges of `size` integers from `first` to `last` - 1, with the progress bar `name`."""
    ranges = [range(start, min(start + size, last)) for start in range(first, last, size)]
    return tqdm(ranges, desc=name, disable=None, leave=False)


def _to_pixels(images: Tensor) -> Tensor:
    return (images.clamp(-1, 1) + 1) / 2
