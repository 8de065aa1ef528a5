"""Scores of single images: likelihood under the target, what the rulers measure, distance from autoregressive ones.

Exact methods emit the autoregressive decoder's codes, so that many methods share images: each distinct pair of prompt
and codes is decoded and measured once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from lantern.checkpoints.native import load_model
from lantern.models.target import TargetModel
from lantern.models.text import TextEncoder
from lantern.prompts import Prompt
from lantern.records import GenerationRecords
from lantern_pipeline.data.image_files import decode_images
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.metrics.fidelity import SetRuler
from lantern_pipeline.metrics.image_rulers import ImageRuler, score_with_all
from lantern_pipeline.metrics.likelihood import score_tokens
from lantern_pipeline.metrics.registry import Workbench, build_rulers
from lantern_pipeline.metrics.speed import BASELINE
from lantern_pipeline.world.tokenizer import load_tokenizer


@dataclass(frozen=True)
class Rulers:
    """What images are measured with; models are in evaluation mode and on one device.

    Attributes:
        tokenizer: draws images from codes.
        target_model: gives tokens their likelihood.
        text_encoder: of the target.
        of_images: what measures single images.
        of_sets: what measures sets of images.
    """

    tokenizer: nn.Module
    target_model: TargetModel
    text_encoder: TextEncoder
    of_images: tuple[ImageRuler, ...]
    of_sets: SetRuler

    def describe(self) -> dict[str, Any]:
        """Says in columns of a row what the rulers measure with: names, hashes of weights, preprocessing."""
        described: dict[str, Any] = {}
        for ruler in (self.of_sets, *self.of_images):
            described |= ruler.describe()
        return described

    @property
    def device(self) -> torch.device:
        """Where the models lie."""
        return self.target_model.head.weight.device


def load_rulers(
    files: Any,
    text: dict[str, Any],
    data_source: str,
    seed: int,
    device: torch.device,
    metrics: Mapping[str, Any],
) -> Rulers:
    """Loads what images are measured with.

    Args:
        files: paths as attributes: tokenizer, target, text (stored features of the prompts; empty where words are
            embedded) and those of `lantern_pipeline.metrics.registry.metric_files`.
        text: config section `text`.
        data_source: config key data.source.
        seed: run seed, of the word embeddings.
        device: where to measure.
        metrics: config section `metrics`, which chooses the rulers.
    """
    models = {
        "tokenizer": load_tokenizer(files.tokenizer).to(device),
        "target_model": load_model(files.target, TargetModel).to(device),
        "text_encoder": make_text_encoder(text, data_source, seed, files.text),
    }
    found = build_rulers(Workbench(files, metrics, device))
    return Rulers(**models, of_images=found.of_images, of_sets=found.of_sets)


@dataclass(frozen=True)
class ImageScores:
    """What was measured on each image.

    Attributes:
        features: (images, num_features) float32, raw features of the ruler of sets; (images, 0) without one.
        token_nll: (images, tokens) float32, nats per token; (images, 0) for images without codes.
        columns: name -> (images,) float32: nll (mean of token_nll; nan for images without codes), clip_score (cosine),
            prompt_accuracy and is_all_correct (shares), all nan where they are not measured; what further rulers
            measure, such as hps (cosine); and, for images of methods, pixel_mse.
    """

    features: Tensor
    token_nll: Tensor
    columns: dict[str, Tensor]

    def select(self, rows: Tensor) -> ImageScores:
        """Scores of some images, `rows` (selected,) int64."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        return ImageScores(self.features[rows], self.token_nll[rows], columns)

    def allocate(self, num_images: int) -> ImageScores:
        """Room for the scores of many images, to be filled with `put`: joining batches would hold all of them twice."""
        columns = {name: column.new_empty(num_images) for name, column in self.columns.items()}
        features, token_nll = (part.new_empty(num_images, part.shape[1]) for part in (self.features, self.token_nll))
        return ImageScores(features, token_nll, columns)

    def put(self, first: int, part: ImageScores) -> None:
        """Writes the scores of a batch over the images from number `first` on."""
        rows = slice(first, first + len(part.features))
        self.features[rows], self.token_nll[rows] = part.features, part.token_nll
        for name, column in self.columns.items():
            column[rows] = part.columns[name]


@dataclass(frozen=True)
class RecordScores:
    """Scores of several methods' images; images that methods share are held once.

    Attributes:
        distinct: of every distinct image.
        numbers: method_id -> (prompts,) int64, which of them are the method's.
    """

    distinct: ImageScores
    numbers: Mapping[str, Tensor]

    def __getitem__(self, method_id: str) -> ImageScores:
        """A copy of the scores of one method, in the order of the prompts."""
        return self.distinct.select(self.numbers[method_id])


@torch.inference_mode()
def score_records(
    records: Mapping[str, GenerationRecords],
    prompts: Sequence[Prompt],
    rulers: Rulers,
    settings: Mapping[str, Any],
) -> RecordScores:
    """Scores every method's images, each distinct (prompt, codes) once.

    `pixel_mse` compares an image with the autoregressive one of the same prompt: the mean squared difference of pixels
    in [0, 1]. No more than a batch of images is held at any time, however many methods and prompts there are.

    Args:
        records: method_id -> its records, autoregressive decoding's among them; all of one guidance scale and of the
            same prompts in the same order.
        prompts: the prompt set, in the order of the records.
        rulers: measuring models.
        settings: config section `metrics`: batch_size.

    Returns:
        The scores, to be read by method id.

    Raises:
        ValueError: no autoregressive records, or records whose prompt ids are not those of `prompts`.
    """
    _check_records(records, prompts)
    owners, numbers = _number_distinct(records)
    baseline = numbers[list(records).index(BASELINE)]
    codes = [record.codes for record in records.values()]
    distinct: ImageScores | None = None
    last_seen = torch.empty(0)
    for indices in chunks(0, len(owners), settings["batch_size"], "images"):
        places = owners[indices.start : indices.stop]
        batch = torch.stack([codes[method][prompt] for method, prompt in places]).long().to(rulers.device)
        chosen = [prompts[prompt] for _, prompt in places]
        scores, pixels = _score_decoded(batch, chosen, rulers, records[BASELINE].metadata["cfg_scale"])
        # (images,) place of the autoregressive image: in this batch, or 0 for the last one of the batch before
        partner = baseline[[prompt for _, prompt in places]] - indices.start + 1
        partner = partner.clamp(min=0).to(pixels.device)
        seen = torch.cat([last_seen.to(pixels.device) if len(last_seen) else pixels[:1], pixels])
        scores.columns["pixel_mse"] = (pixels - seen[partner]).square().flatten(1).mean(dim=1).cpu()
        distinct = distinct or scores.allocate(len(owners))
        distinct.put(indices.start, scores)
        last_seen = seen[partner[-1:]]
    return RecordScores(distinct, dict(zip(records, numbers, strict=True)))


def score_codes(codes: Tensor, prompts: Sequence[Prompt], rulers: Rulers, cfg_scale: float) -> ImageScores:
    """Scores one batch of codes (images, tokens), as images and under the target."""
    return _score_decoded(codes.to(rulers.device), prompts, rulers, cfg_scale)[0]


def score_images(images: Tensor, prompts: Sequence[Prompt], rulers: Rulers, token_nll: Tensor) -> ImageScores:
    """Scores one batch of images (images, 3, S, S) in [-1, 1], whose tokens' likelihood is known or has no tokens."""
    columns = {"nll": token_nll.mean(dim=1)}  # nan without tokens
    columns |= score_with_all(rulers.of_images, images, prompts)
    return ImageScores(rulers.of_sets.extract(images), token_nll, columns)


def concatenate_scores(parts: Sequence[ImageScores]) -> ImageScores:
    """Joins the scores of batches."""
    return ImageScores(
        torch.cat([part.features for part in parts]),
        torch.cat([part.token_nll for part in parts]),
        {name: torch.cat([part.columns[name] for part in parts]) for name in parts[0].columns},
    )


def chunks(first: int, last: int, size: int, name: str) -> tqdm:
    """Ranges of at most `size` numbers that cover [first, last), with a progress bar."""
    ranges = [range(start, min(start + size, last)) for start in range(first, last, size)]
    return tqdm(ranges, desc=name, disable=None, leave=False)


def _number_distinct(records: Mapping[str, GenerationRecords]) -> tuple[list[tuple[int, int]], Tensor]:
    """Numbers the distinct images, prompt by prompt, the autoregressive one first and the others by their codes.

    The image to compare with is then in the batch, or was the last autoregressive one before it.

    Returns:
        ((place of a method, prompt) of each image, numbers of all methods' images (methods, prompts) int64).
    """
    codes = [record.codes.numpy() for record in records.values()]
    first = list(records).index(BASELINE)
    owners: list[tuple[int, int]] = []
    numbers = torch.empty(len(codes), len(codes[first]), dtype=torch.int64)
    for prompt in range(numbers.shape[1]):
        keys = [rows[prompt].astype(">i4").tobytes() for rows in codes]  # big-endian: bytes sort as the codes do
        ordered = [keys[first], *sorted(set(keys) - {keys[first]})]
        numbers[:, prompt] = torch.tensor([len(owners) + ordered.index(key) for key in keys])
        owners += [(keys.index(key), prompt) for key in ordered]
    return owners, numbers


def _score_decoded(
    codes: Tensor, prompts: Sequence[Prompt], rulers: Rulers, cfg_scale: float
) -> tuple[ImageScores, Tensor]:
    """Scores codes on the rulers' device; also gives the images' pixels (images, 3, S, S) in [0, 1]."""
    texts = [prompt.text for prompt in prompts]
    token_nll = score_tokens(
        rulers.target_model, rulers.text_encoder, codes, texts, cfg_scale=cfg_scale, batch_size=len(texts)
    )
    images = decode_images(rulers.tokenizer, codes, len(codes))
    return score_images(images, prompts, rulers, token_nll), (images.clamp(-1, 1) + 1) / 2


def _check_records(records: Mapping[str, GenerationRecords], prompts: Sequence[Prompt]) -> None:
    if BASELINE not in records:
        raise ValueError(f"quality needs the records of {BASELINE}, the method that all others are compared with")
    expected = [prompt.id for prompt in prompts]
    for method_id, record in records.items():
        if record.prompt_ids != expected:
            raise ValueError(
                f"the records of {method_id} are of other prompts than the prompt set; generate them again"
            )
