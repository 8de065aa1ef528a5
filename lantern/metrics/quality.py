"""Quality of generated images: every quality metric of every method on one prompt set at one temperature.

Exact methods emit the autoregressive decoder's codes, so that many rows of a table share images: each distinct pair of
prompt and codes is decoded and measured once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from tqdm import tqdm

from lantern.data import ImageSource
from lantern.metrics.equality import Equality, compare_with_autoregressive
from lantern.metrics.features import extract_features, feature_scale
from lantern.metrics.fidelity import measure_fidelity
from lantern.metrics.likelihood import score_codes
from lantern.metrics.prompt_accuracy import score_prompts
from lantern.metrics.speed import BASELINE
from lantern.models.clip import ClipScorer
from lantern.models.recogniser import Recogniser
from lantern.models.target import TargetModel
from lantern.models.text import TextEncoder
from lantern.prompts import Prompt
from lantern.records import GenerationRecords

REAL, RECONSTRUCTION = "real", "reconstruction"
CEILINGS = (REAL, RECONSTRUCTION)


@dataclass(frozen=True)
class Rulers:
    """The trained models that images are measured with, in evaluation mode and on one device."""

    tokenizer: nn.Module
    recogniser: Recogniser
    clip_scorer: ClipScorer
    target_model: TargetModel
    text_encoder: TextEncoder

    @property
    def device(self) -> torch.device:
        """Where the models lie."""
        return self.target_model.head.weight.device


@dataclass(frozen=True)
class ImageScores:
    """What was measured on each image.

    Attributes:
        features: (images, num_features) float32, raw recogniser features.
        columns: name -> (images,) float32: clip_score (cosine), prompt_accuracy and is_all_correct (shares), nll (nats
            per token; nan for images without codes).
    """

    features: Tensor
    columns: dict[str, Tensor]

    def select(self, rows: Tensor) -> ImageScores:
        """Scores of some images, `rows` (selected,) int64."""
        return ImageScores(self.features[rows], {name: column[rows] for name, column in self.columns.items()})


@torch.inference_mode()
def measure_quality(
    records: Mapping[str, GenerationRecords],
    prompts: Sequence[Prompt],
    source: ImageSource,
    rulers: Rulers,
    *,
    settings: Mapping[str, Any],
    prompt_set: str,
    split: str,
    seed: int,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Measures all methods on one prompt set at one temperature, and the two ceilings.

    The reference of FID, KID, precision and recall: reconstructions of held-out images of `split` that belong to none
    of the prompts (a folder with too few held-out images repeats them). The ceilings are as many images as there are
    prompts: "real" and "reconstruction", with their own captions.

    Args:
        records: method_id -> its records; all of one temperature and guidance scale, of the same prompts.
        prompts: the prompt set, in the order of the records.
        source: of held-out images.
        rulers: measuring models.
        settings: config section `metrics`.
        prompt_set: its name, for the tables.
        split: the source's split that the prompts are of; "val" for prompts from a file.
        seed: of KID's subsets.

    Returns:
        (rows, images): one row per method with its parameters, tokens_equal_autoregressive and the quality metrics; one
            row per
        method x prompt with what was measured on that image.

    Raises:
        ValueError: no autoregressive records, or records whose prompt ids are not those of `prompts`.
    """
    _check_records(records, prompts)
    reference = _Reference.measure(source, rulers, split, len(prompts), settings, seed)
    place = {"prompt_set": prompt_set, "temperature": records[BASELINE].metadata["temperature"]}
    rows, images = [], []
    for method_id, scores in _score_records(records, prompts, rulers, settings).items():
        record, head = records[method_id], {"method_id": method_id, **place}
        equality = _compare(record, records[BASELINE], settings)
        exactness = {"tokens_equal_autoregressive": equality.share_equal, "num_near_ties": equality.num_near_ties}
        rows.append({**head, **_parameters(record), **_mean_scores(scores), **reference.compare(scores), **exactness})
        equal = {"is_equal": equality.is_equal, "is_near_tie": equality.is_near_tie}
        ids = [prompt.id for prompt in prompts]
        images.append(_to_frame({**head, "prompt_id": ids}, scores, {**_speed_columns(record), **equal}))
    cfg_scale = records[BASELINE].metadata["cfg_scale"]
    ids = [prompt.id for prompt in source.prompts(split, len(prompts))]
    for name, scores in _score_ceilings(source, rulers, split, len(prompts), settings, cfg_scale).items():
        head = {"method_id": name, **place}
        common = {**head, "method": name, "cfg_scale": cfg_scale, "num_images": len(prompts)}
        rows.append({**common, **_mean_scores(scores), **reference.compare(scores)})
        images.append(_to_frame({**head, "prompt_id": ids}, scores, {}))
    return pd.DataFrame(rows), pd.concat(images, ignore_index=True)


@dataclass(frozen=True)
class _Reference:
    """Standardised features of the reference images and the scale that standardises others."""

    features: Tensor
    mean: Tensor
    std: Tensor
    settings: Mapping[str, Any]
    seed: int

    @classmethod
    def measure(
        cls,
        source: ImageSource,
        rulers: Rulers,
        split: str,
        first: int,
        settings: Mapping[str, Any],
        seed: int,
    ) -> _Reference:
        """Measures the reconstructions of the split's images from number `first` on."""
        features = []
        for indices in _chunks(first, first + settings["num_reference"], settings["batch_size"], "reference"):
            codes = rulers.tokenizer.encode(source.images(split, indices).to(rulers.device))
            features.append(extract_features(rulers.recogniser, decode_images(rulers.tokenizer, codes)))
        raw = torch.cat(features)
        mean, std = feature_scale(raw)
        return cls((raw - mean) / std, mean, std, settings, seed)

    def compare(self, scores: ImageScores) -> dict[str, float]:
        """FID, KID, precision and recall of some images."""
        return measure_fidelity(
            (scores.features - self.mean) / self.std,
            self.features,
            kid_subset_size=self.settings["kid_subset_size"],
            kid_subsets=self.settings["kid_subsets"],
            prc_neighbours=self.settings["prc_neighbours"],
            seed=self.seed,
        )


def decode_images(tokenizer: nn.Module, codes: Tensor) -> Tensor:
    """Decodes codes (images, tokens) to images (images, 3, S, S) float32 in [-1, 1], on the codes' device."""
    return tokenizer.decode(codes.long()).float()


def _score_records(
    records: Mapping[str, GenerationRecords],
    prompts: Sequence[Prompt],
    rulers: Rulers,
    settings: Mapping[str, Any],
) -> dict[str, ImageScores]:
    """Scores every method's images, each distinct (prompt, codes) once."""
    prompt_numbers = torch.arange(len(prompts))[:, None]
    keyed = torch.cat([torch.cat([prompt_numbers, record.codes.long()], dim=1) for record in records.values()])
    distinct, inverse = torch.unique(keyed, dim=0, return_inverse=True)  # (distinct, 1 + tokens), (methods * prompts)
    cfg_scale = records[BASELINE].metadata["cfg_scale"]
    parts = []
    for indices in _chunks(0, len(distinct), settings["batch_size"], "images"):
        rows = distinct[indices.start : indices.stop]
        chosen = [prompts[i] for i in rows[:, 0].tolist()]
        parts.append(_score_codes(rows[:, 1:], chosen, rulers, cfg_scale))
    scores = _concatenate(parts)
    return {
        method_id: scores.select(rows)
        for method_id, rows in zip(records, inverse.view(len(records), len(prompts)), strict=True)
    }


def _score_ceilings(
    source: ImageSource,
    rulers: Rulers,
    split: str,
    num_images: int,
    settings: Mapping[str, Any],
    cfg_scale: float,
) -> dict[str, ImageScores]:
    """Scores real images of the split and their reconstructions against their own captions."""
    prompts = source.prompts(split, num_images)
    parts: dict[str, list[ImageScores]] = {name: [] for name in CEILINGS}
    for indices in _chunks(0, num_images, settings["batch_size"], "ceilings"):
        images, chosen = source.images(split, indices).to(rulers.device), prompts[indices.start : indices.stop]
        codes = rulers.tokenizer.encode(images)
        parts[REAL].append(_score_images(images, chosen, rulers, torch.full((len(chosen),), torch.nan)))
        parts[RECONSTRUCTION].append(_score_codes(codes, chosen, rulers, cfg_scale))
    return {name: _concatenate(part) for name, part in parts.items()}


def _score_codes(codes: Tensor, prompts: Sequence[Prompt], rulers: Rulers, cfg_scale: float) -> ImageScores:
    """Scores one batch of codes (images, tokens), as images and under the target."""
    codes = codes.to(rulers.device)
    texts = [prompt.text for prompt in prompts]
    nll = score_codes(
        rulers.target_model, rulers.text_encoder, codes, texts, cfg_scale=cfg_scale, batch_size=len(texts)
    )
    return _score_images(decode_images(rulers.tokenizer, codes), prompts, rulers, nll)


def _score_images(images: Tensor, prompts: Sequence[Prompt], rulers: Rulers, nll: Tensor) -> ImageScores:
    """Scores one batch of images (images, 3, S, S) in [-1, 1]."""
    accuracy = score_prompts(rulers.recogniser, images, [prompt.scene for prompt in prompts])
    texts = [prompt.text for prompt in prompts]
    columns = {
        "nll": nll,
        "clip_score": rulers.clip_scorer.score(images, texts, batch_size=len(texts)),
        "prompt_accuracy": accuracy.per_prompt,
        "is_all_correct": accuracy.is_all_correct,
    }
    return ImageScores(extract_features(rulers.recogniser, images, batch_size=len(texts)), columns)


def _concatenate(parts: Sequence[ImageScores]) -> ImageScores:
    names = parts[0].columns
    return ImageScores(
        torch.cat([part.features for part in parts]),
        {name: torch.cat([part.columns[name] for part in parts]) for name in names},
    )


def _mean_scores(scores: ImageScores) -> dict[str, float]:
    """Means over the images that have a value; nan where none has."""
    means = {name: float(column.nanmean()) for name, column in scores.columns.items()}
    means["all_correct"] = means.pop("is_all_correct")
    return means


def _parameters(record: GenerationRecords) -> dict[str, Any]:
    """The method's parts and parameters and what the run adds: the identifying columns of a row."""
    parts = {("method" if name == "name" else name): value for name, value in record.metadata["method"].items()}
    return {**parts, "cfg_scale": record.metadata["cfg_scale"], "num_images": len(record)}


def _compare(record: GenerationRecords, baseline: GenerationRecords, settings: Mapping[str, Any]) -> Equality:
    return compare_with_autoregressive(record.codes, baseline.codes, baseline.margins, settings["near_tie_margin"])


def _speed_columns(record: GenerationRecords) -> dict[str, Tensor]:
    """Counts per image. Verification by rejection draws no token of the target's own: substitutions are nan there."""
    method = record.metadata["method"]
    is_rejection = method["drafts"] == "sampled" or method["residual"] == "official"
    substitutions = record.is_substituted.sum(dim=1).double()
    if is_rejection:
        substitutions = torch.full_like(substitutions, torch.nan)
    return {
        "num_tokens": torch.full((len(record),), record.codes.shape[1]),
        "target_forwards": record.target_forwards,
        "substitutions": substitutions,
        "seconds_in_batch": record.seconds,
    }


def _to_frame(head: Mapping[str, Any], scores: ImageScores, speed: Mapping[str, Tensor]) -> pd.DataFrame:
    columns = {name: column.numpy() for name, column in {**speed, **scores.columns}.items()}
    return pd.DataFrame({**head, **columns})


def _check_records(records: Mapping[str, GenerationRecords], prompts: Sequence[Prompt]) -> None:
    if BASELINE not in records:
        raise ValueError(f"quality needs the records of {BASELINE}, the method that all others are compared with")
    expected = [prompt.id for prompt in prompts]
    for method_id, record in records.items():
        if record.prompt_ids != expected:
            raise ValueError(
                f"the records of {method_id} are of other prompts than the prompt set; generate them again"
            )


def _chunks(first: int, last: int, size: int, name: str) -> tqdm:
    """Ranges of at most `size` numbers that cover [first, last), with a progress bar."""
    ranges = [range(start, min(start + size, last)) for start in range(first, last, size)]
    return tqdm(ranges, desc=name, disable=None, leave=False)
