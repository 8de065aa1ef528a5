"""Scores of single images: likelihood under the target, what the config chooses, distance from autoregressive ones.

Exact methods emit the autoregressive decoder's codes, so that a method's images are scored only where they differ from
the autoregressive ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from lantern.io import DamagedFileError, load_tensors, save_tensors
from lantern.prompts import Prompt
from lantern.records import GenerationRecords
from lantern_pipeline.data.image_files import decode_images
from lantern_pipeline.measure.likelihood import score_tokens
from lantern_pipeline.measure.measuring_models import MeasuringModels
from lantern_pipeline.measure.speed import BASELINE


@dataclass(frozen=True)
class ImageScores:
    """What was measured on each image."""

    features: Tensor  # (images, width) float32, raw features that sets are compared by; (images, 0) where none are
    # `Metric.per_image` -> (images,) float32 of what is measured; nll, the mean over tokens, is nan for images without
    # codes; images of methods have pixel_mse
    columns: dict[str, Tensor]

    def select(self, rows: Tensor) -> ImageScores:
        """Scores of some images, `rows` (selected,) int64."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        return ImageScores(self.features[rows], columns)


@dataclass(frozen=True)
class MethodScores:
    """Scores of the images in which a method differs from autoregressive decoding; of that method itself, of all."""

    method_id: str
    prompts: Tensor  # (images,) int64, the numbers of their prompts
    scores: ImageScores  # of these images

    def complete(self, baseline: ImageScores) -> ImageScores:
        """Return the scores of all images, in the order of the prompts.

        Args:
            baseline: scores of all autoregressive images, in the same order.
        """
        found = baseline.select(torch.arange(len(baseline.features)))
        if len(self.prompts):
            found.features[self.prompts] = self.scores.features
            for name, column in self.scores.columns.items():
                found.columns[name][self.prompts] = column
        return found


def save_scores(path: Path, found: MethodScores) -> None:
    """Write scores into one safetensors file, atomically."""
    columns = {f"columns.{name}": column for name, column in found.scores.columns.items()}
    tensors = {"prompts": found.prompts, "features": found.scores.features, **columns}
    metadata = {"kind": "image_scores", "method_id": found.method_id, "columns": [*found.scores.columns]}
    save_tensors(path, tensors, metadata)


def load_scores(path: Path) -> MethodScores:
    """Read scores.

    Raises:
        DamagedFileError: the file is damaged or holds no scores.
    """
    tensors, metadata = load_tensors(path)
    if metadata.get("kind") != "image_scores":
        raise DamagedFileError(path, "holds no scores of images")
    columns = {name: tensors[f"columns.{name}"] for name in metadata["columns"]}
    return MethodScores(metadata["method_id"], tensors["prompts"], ImageScores(tensors["features"], columns))


@torch.inference_mode()
def score_method(
    records: GenerationRecords,
    baseline: GenerationRecords,
    prompts: Sequence[Prompt],
    models: MeasuringModels,
) -> MethodScores:
    """Score the images of a method that differ from the autoregressive ones; of autoregressive decoding, all.

    The column pixel_mse compares an image with the autoregressive one of the same prompt: the mean squared difference
    of pixels in [0, 1]. No more than two batches of images are held at any time.

    Args:
        records: of the method, of `prompts` in their order.
        baseline: of autoregressive decoding, of the same prompts and guidance scale.
        prompts: what was drawn.
        models: what measures.
    """
    method_id = records.metadata["method"]["method_id"]
    is_baseline = method_id == BASELINE
    differs = (
        torch.ones(len(prompts), dtype=torch.bool) if is_baseline else (records.codes != baseline.codes).any(dim=1)
    )
    chosen, cfg_scale = differs.nonzero().flatten(), baseline.metadata["cfg_scale"]
    parts = []
    for numbers in chunks(0, len(chosen), models.batch_size, "images"):
        rows = chosen[numbers.start : numbers.stop]
        codes, others = (found.codes[rows].long().to(models.device) for found in (records, baseline))
        scores, pixels = _score_decoded(codes, [prompts[row] for row in rows.tolist()], models, cfg_scale)
        partners = pixels if is_baseline else _to_pixels(decode_images(models.tokenizer, others, len(others)))
        scores.columns["pixel_mse"] = (pixels - partners).square().flatten(1).mean(dim=1).cpu()
        parts.append(scores)
    return MethodScores(method_id, chosen, concatenate_scores(parts))


def score_records(
    records: Mapping[str, GenerationRecords], prompts: Sequence[Prompt], models: MeasuringModels
) -> dict[str, ImageScores]:
    """Score the images of several methods, autoregressive decoding among them; see `score_method`."""
    baseline = records[BASELINE]
    parts = {name: score_method(record, baseline, prompts, models) for name, record in records.items()}
    return {name: part.complete(parts[BASELINE].scores) for name, part in parts.items()}


def score_codes(codes: Tensor, prompts: Sequence[Prompt], models: MeasuringModels, cfg_scale: float) -> ImageScores:
    """Scores one batch of codes (images, tokens), as images and under the target."""
    return _score_decoded(codes.to(models.device), prompts, models, cfg_scale)[0]


def score_images(images: Tensor, prompts: Sequence[Prompt], models: MeasuringModels, nll: Tensor) -> ImageScores:
    """Scores one batch of images (images, 3, S, S) in [-1, 1] with their `nll` (images,), nan without tokens."""
    columns = {"nll": nll}
    for part in models.scores:
        columns |= part.score(images, prompts)
    features = models.fidelity.extract(images) if models.fidelity else torch.empty(len(images), 0)
    return ImageScores(features, columns)


def concatenate_scores(parts: Sequence[ImageScores]) -> ImageScores:
    """Join the scores of batches; none make none."""
    if not parts:
        return ImageScores(torch.empty(0, 0), {})
    return ImageScores(
        torch.cat([part.features for part in parts]),
        {name: torch.cat([part.columns[name] for part in parts]) for name in parts[0].columns},
    )


def chunks(first: int, last: int, size: int, name: str) -> tqdm:
    """Ranges of at most `size` numbers that cover [first, last), with a progress bar."""
    ranges = [range(start, min(start + size, last)) for start in range(first, last, size)]
    return tqdm(ranges, desc=name, disable=None, leave=False)


def _score_decoded(
    codes: Tensor, prompts: Sequence[Prompt], models: MeasuringModels, cfg_scale: float
) -> tuple[ImageScores, Tensor]:
    """Scores codes on the models' device; also gives the images' pixels (images, 3, S, S) in [0, 1]."""
    texts = [prompt.text for prompt in prompts]
    token_nll = score_tokens(
        models.target_model, models.text_encoder, codes, texts, cfg_scale=cfg_scale, batch_size=len(texts)
    )
    images = decode_images(models.tokenizer, codes, len(codes))
    return score_images(images, prompts, models, token_nll.mean(dim=1)), _to_pixels(images)


def _to_pixels(images: Tensor) -> Tensor:
    """Return images in [-1, 1] as pixels in [0, 1]."""
    return (images.clamp(-1, 1) + 1) / 2
