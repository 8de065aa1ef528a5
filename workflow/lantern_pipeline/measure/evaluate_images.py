"""Scores of single images: likelihood under the target, what the config chooses, distance from autoregressive ones.

Exact methods emit the autoregressive decoder's codes, so that many methods share images: each distinct pair of prompt
and codes is decoded and measured once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

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
class RecordScores:
    """Scores of several methods' images; images that methods share are held once."""

    distinct: ImageScores  # of every distinct image
    numbers: Mapping[str, Tensor]  # method_id -> (prompts,) int64, which of them are the method's

    def __getitem__(self, method_id: str) -> ImageScores:
        """A copy of the scores of one method, in the order of the prompts."""
        return self.distinct.select(self.numbers[method_id])


@torch.inference_mode()
def score_records(
    records: Mapping[str, GenerationRecords], prompts: Sequence[Prompt], models: MeasuringModels
) -> RecordScores:
    """Scores every method's images, each distinct (prompt, codes) once.

    `records` are of one guidance scale and of `prompts` in their order, autoregressive decoding's among them. The
    column pixel_mse compares an image with the autoregressive one of the same prompt: the mean squared difference of
    pixels in [0, 1]. No more than a batch of images is held at any time.
    """
    owners, numbers = _number_distinct(records)
    parts, partner = [], torch.empty(0)
    for indices in chunks(0, len(owners), models.batch_size, "images"):
        places = owners[indices.start : indices.stop]
        batch = torch.stack([records[method].codes[prompt] for method, prompt in places]).long().to(models.device)
        chosen = [prompts[prompt] for _, prompt in places]
        scores, pixels = _score_decoded(batch, chosen, models, records[BASELINE].metadata["cfg_scale"])
        partners = []
        for number, (_, prompt), image in zip(indices, places, pixels, strict=True):
            if number == numbers[BASELINE][prompt]:  # a prompt's autoregressive image is its first one
                partner = image
            partners.append(partner)
        scores.columns["pixel_mse"] = (pixels - torch.stack(partners)).square().flatten(1).mean(dim=1).cpu()
        parts.append(scores)
    return RecordScores(concatenate_scores(parts), numbers)


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
    """Joins the scores of batches."""
    return ImageScores(
        torch.cat([part.features for part in parts]),
        {name: torch.cat([part.columns[name] for part in parts]) for name in parts[0].columns},
    )


def chunks(first: int, last: int, size: int, name: str) -> tqdm:
    """Ranges of at most `size` numbers that cover [first, last), with a progress bar."""
    ranges = [range(start, min(start + size, last)) for start in range(first, last, size)]
    return tqdm(ranges, desc=name, disable=None, leave=False)


def _number_distinct(records: Mapping[str, GenerationRecords]) -> tuple[list[tuple[str, int]], dict[str, Tensor]]:
    """Numbers the distinct images, prompt by prompt, the autoregressive one first and the others by their codes: (a
    method and the prompt of each image, method -> numbers of its images (prompts,) int64).
    """
    codes = {method: record.codes.numpy() for method, record in records.items()}
    owners: list[tuple[str, int]] = []
    numbers: dict[str, list[int]] = {method: [] for method in codes}
    for prompt in range(len(codes[BASELINE])):
        # big-endian: bytes sort as the codes do
        keys = {method: rows[prompt].astype(">i4").tobytes() for method, rows in codes.items()}
        ordered = [keys[BASELINE], *sorted(set(keys.values()) - {keys[BASELINE]})]
        for method, key in keys.items():
            numbers[method].append(len(owners) + ordered.index(key))
        owners += [(next(method for method in keys if keys[method] == key), prompt) for key in ordered]
    return owners, {method: torch.tensor(found) for method, found in numbers.items()}


def _score_decoded(
    codes: Tensor, prompts: Sequence[Prompt], models: MeasuringModels, cfg_scale: float
) -> tuple[ImageScores, Tensor]:
    """Scores codes on the models' device; also gives the images' pixels (images, 3, S, S) in [0, 1]."""
    texts = [prompt.text for prompt in prompts]
    token_nll = score_tokens(
        models.target_model, models.text_encoder, codes, texts, cfg_scale=cfg_scale, batch_size=len(texts)
    )
    images = decode_images(models.tokenizer, codes, len(codes))
    return score_images(images, prompts, models, token_nll.mean(dim=1)), (images.clamp(-1, 1) + 1) / 2
