"""Scores of single images: likelihood under the target, chosen metrics, and distance from the autoregressive image.

The *autoregressive image* that belongs to an image was decoded autoregressively, with the same prompt and noise. Exact
methods emit the same codes, so both images are equal. Only images that differ from their autoregressive image are
scored, which saves time.
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
from lantern_pipeline.measure.metric_models import MetricModels
from lantern_pipeline.measure.speed import BASELINE


@dataclass(frozen=True)
class ImageScores:
    """Measurements of single images: columns of scores, and features for metrics of the whole set.

    Attributes:
        features: features of the images, float32 (images, width), from each network that metrics of whole sets of
            images need, such as Inception for FID. The keys are config keys of these metrics, such as "fidelity". Empty
            if these metrics are off.
        columns: name of a table column (`Metric.per_image`) -> scores, float32 (images,). Column nll is the negative
            log-likelihood, a mean over the tokens of an image. It is nan for images without codes. Column pixel_mse,
            the distance from the autoregressive image, exists only for images that a method generated.
    """

    features: dict[str, Tensor]
    columns: dict[str, Tensor]

    def select(self, rows: Tensor) -> ImageScores:
        """Return the scores of some of these images.

        Args:
            rows: indices of the images, int64 (selected,).
        """
        parts = ({name: values[rows] for name, values in part.items()} for part in (self.features, self.columns))
        return ImageScores(*parts)


@dataclass(frozen=True)
class MethodScores:
    """Scores of those images of a method that differ from the autoregressive image of the same prompt.

    For autoregressive decoding itself, these are the scores of all images.

    Attributes:
        method_id: id of the method.
        prompts: index of the prompt of each scored image, int64 (images,).
        scores: scores of these images.
    """

    method_id: str
    prompts: Tensor
    scores: ImageScores

    def complete(self, baseline: ImageScores) -> ImageScores:
        """Return the scores of all images of the method, in the order of the prompts.

        An image that equals the autoregressive one gets the scores of that image.

        Args:
            baseline: scores of all autoregressive images, in the order of the prompts.
        """
        found = baseline.select(torch.arange(len(baseline.columns["nll"])))
        for name, features in self.scores.features.items():
            found.features[name][self.prompts] = features
        for name, column in self.scores.columns.items():
            found.columns[name][self.prompts] = column
        return found


def save_scores(path: Path, found: MethodScores) -> None:
    """Write the scores of a method to one safetensors file. An interrupted call leaves no incomplete file."""
    parts = {"features": found.scores.features, "columns": found.scores.columns}
    tensors = {f"{part}.{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}
    names = {part: [*tensors] for part, tensors in parts.items()}
    metadata = {"kind": "image_scores", "method_id": found.method_id, **names}
    save_tensors(path, {"prompts": found.prompts, **tensors}, metadata)


def load_scores(path: Path) -> MethodScores:
    """Read scores that `save_scores` wrote.

    Raises:
        DamagedFileError: the file is damaged or holds no scores.
    """
    tensors, metadata = load_tensors(path)
    if metadata.get("kind") != "image_scores":
        raise DamagedFileError(path, "holds no scores of images")
    parts = ({name: tensors[f"{part}.{name}"] for name in metadata[part]} for part in ("features", "columns"))
    return MethodScores(metadata["method_id"], tensors["prompts"], ImageScores(*parts))


@torch.inference_mode()
def score_method(
    records: GenerationRecords,
    baseline: GenerationRecords,
    prompts: Sequence[Prompt],
    models: MetricModels,
) -> MethodScores:
    """Score those images of a method that differ from the autoregressive ones.

    For autoregressive decoding itself, all images are scored. Column pixel_mse compares an image with the
    autoregressive image of the same prompt. It is the mean squared difference of pixel values in [0, 1]. At most two
    batches of images are in memory at once.

    Args:
        records: generated images of the method, one per prompt, in the order of `prompts`.
        baseline: images of autoregressive decoding, with the same prompts and guidance scale.
        prompts: prompts of the images.
        models: models that evaluate images (metric models).
    """
    method_id = records.metadata["method"]["method_id"]
    is_baseline = method_id == BASELINE
    differs = (
        torch.ones(len(prompts), dtype=torch.bool) if is_baseline else (records.codes != baseline.codes).any(dim=1)
    )
    models.count_cut(prompts)  # warns of all of them together
    chosen, cfg_scale = differs.nonzero().flatten(), baseline.metadata["cfg_scale"]
    parts = []
    for numbers in chunks(0, len(chosen), models.batch_size, "images"):
        rows = chosen[numbers.start : numbers.stop]
        codes, others = (found.codes[rows].long().to(models.device) for found in (records, baseline))
        scores, pixels = score_decoded(codes, [prompts[row] for row in rows.tolist()], models, cfg_scale)
        partners = pixels if is_baseline else _to_pixels(decode_images(models.tokenizer, others, len(others)))
        scores.columns["pixel_mse"] = pixel_mse(pixels, partners)
        parts.append(scores)
    return MethodScores(method_id, chosen, concatenate_scores(parts))


def score_records(
    records: Mapping[str, GenerationRecords], prompts: Sequence[Prompt], models: MetricModels
) -> dict[str, ImageScores]:
    """Measure the images of several methods by the metrics of single images, and return the scores of all images.

    An image that equals the autoregressive one is not measured again, see `score_method`.

    Args:
        records: method id -> its generated images. Autoregressive decoding must be among the methods.
        prompts: prompts of the images, in the same order.
        models: models that evaluate images (metric models).

    Returns:
        Method id -> scores of all its images, in the order of the prompts.
    """
    baseline = records[BASELINE]
    parts = {name: score_method(record, baseline, prompts, models) for name, record in records.items()}
    return {name: part.complete(parts[BASELINE].scores) for name, part in parts.items()}


def score_codes(codes: Tensor, prompts: Sequence[Prompt], models: MetricModels, cfg_scale: float) -> ImageScores:
    """Score one batch of images that are given as codes.

    Args:
        codes: codes of the images, (images, tokens).
        prompts: one per image.
        models: models that evaluate images (metric models).
        cfg_scale: guidance scale of the likelihood under the target.
    """
    return score_decoded(codes.to(models.device), prompts, models, cfg_scale)[0]


def score_decoded(
    codes: Tensor, prompts: Sequence[Prompt], models: MetricModels, cfg_scale: float
) -> tuple[ImageScores, Tensor]:
    """Decode codes to images and score them.

    Args:
        codes: codes of the images, (images, tokens), on the device of the models.
        prompts: one per image.
        models: models that evaluate images (metric models).
        cfg_scale: guidance scale of the likelihood under the target.

    Returns:
        (scores, pixels). pixels are float32 (images, 3, height, width) in [0, 1].
    """
    texts = [prompt.text for prompt in prompts]
    token_nll = score_tokens(
        models.target_model, models.text_encoder, codes, texts, cfg_scale=cfg_scale, batch_size=len(texts)
    )
    images = decode_images(models.tokenizer, codes, len(codes))
    return score_images(images, prompts, models, token_nll.mean(dim=1)), _to_pixels(images)


def score_images(images: Tensor, prompts: Sequence[Prompt], models: MetricModels, nll: Tensor) -> ImageScores:
    """Score one batch of images that are given as pixels.

    Args:
        images: float32 (images, 3, height, width) in [-1, 1].
        prompts: one per image.
        models: models that evaluate images (metric models).
        nll: negative log-likelihood of each image, a mean over its tokens in nats, (images,). nan for images without
            tokens.
    """
    columns = {"nll": nll}
    for part in models.scores:
        columns |= part.score(images, prompts)
    features = {key: part.extract(images) for key, part in models.of_sets.items()}
    return ImageScores(features, columns)


def pixel_mse(pixels: Tensor, others: Tensor) -> Tensor:
    """Compute the mean squared difference of each image from the image with the same index in another set.

    Args:
        pixels: (images, 3, height, width) in [0, 1].
        others: pixels of the other set, of the same shape.

    Returns:
        (images,), on the CPU.
    """
    return (pixels - others).square().flatten(1).mean(dim=1).cpu()


def concatenate_scores(parts: Sequence[ImageScores]) -> ImageScores:
    """Join the scores of several batches of images.

    Args:
        parts: scores of each batch. If there is no batch, the result has no images and no columns.
    """
    if not parts:
        return ImageScores({}, {})
    return ImageScores(
        {key: torch.cat([part.features[key] for part in parts]) for key in parts[0].features},
        {name: torch.cat([part.columns[name] for part in parts]) for name in parts[0].columns},
    )


def chunks(first: int, last: int, size: int, name: str) -> tqdm:
    """Iterate over the integers from `first` to `last` - 1 in ranges of equal length, with a progress bar.

    Args:
        first: first integer.
        last: end, which is not included.
        size: length of a range. The last range may be shorter.
        name: title of the progress bar.

    Returns:
        An iterator over the ranges.
    """
    ranges = [range(start, min(start + size, last)) for start in range(first, last, size)]
    return tqdm(ranges, desc=name, disable=None, leave=False)


def _to_pixels(images: Tensor) -> Tensor:
    """Convert images with values in [-1, 1] to pixels with values in [0, 1]."""
    return (images.clamp(-1, 1) + 1) / 2
