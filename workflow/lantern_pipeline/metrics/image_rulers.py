"""What measures single images: each ruler gives one or more columns of the per-image table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lantern.prompts import Prompt
from lantern_pipeline.metrics.prompt_accuracy import score_prompts
from lantern_pipeline.world.attribute_classifier import AttributeClassifier
from lantern_pipeline.world.clip import ClipScorer
from lantern_pipeline.world.scenes import scene_of

# Columns that every table of images has; what is not measured is nan.
IMAGE_COLUMNS = ("clip_score", "prompt_accuracy", "is_all_correct")
ATTRIBUTE_CLASSIFIER = "attribute_classifier"


@dataclass(frozen=True)
class Instrument:
    """The model that a metric is measured with.

    Attributes:
        name: of the architecture, layer and text prefix: whatever changes the numbers beside the weights.
        sha256: of the file of its weights; None where it did not come from a file.
    """

    name: str
    sha256: str | None = None

    def describe(self, metric: str) -> dict[str, str | None]:
        """The columns that say so in a row of quality."""
        return {f"{metric}_extractor": self.name, f"{metric}_weights_sha256": self.sha256}


class ImageRuler(Protocol):
    """Measures single images."""

    def describe(self) -> Mapping[str, str | None]:
        """Says in columns of a row what it measures with."""
        ...

    def score(self, images: Tensor, prompts: Sequence[Prompt]) -> dict[str, Tensor]:
        """Scores images (n, 3, S, S) in [-1, 1] of their prompts: column -> (n,) float32 on the CPU."""
        ...


class ClipRuler:
    """A CLIP score as a column: how well images fit their prompts' texts.

    Args:
        scorer: of cosines.
        sha256: of its weights.
        metric: "clip", or "hps".
        column: of the table.
    """

    def __init__(
        self, scorer: ClipScorer, sha256: str | None = None, *, metric: str = "clip", column: str = "clip_score"
    ) -> None:
        self.scorer, self.metric, self.column = scorer, metric, column
        prefix = f', prefix "{scorer.prompt_prefix}"' if scorer.prompt_prefix else ""
        self.instrument = Instrument(f"{scorer.name}{prefix}", sha256)

    def describe(self) -> dict[str, str | None]:
        """See `ImageRuler.describe`."""
        return self.instrument.describe(self.metric)

    def score(self, images: Tensor, prompts: Sequence[Prompt]) -> dict[str, Tensor]:
        """See `ImageRuler.score`."""
        return {self.column: self.scorer.score(images, [prompt.text for prompt in prompts], batch_size=len(prompts))}


class AccuracyRuler:
    """Prompt accuracy by the attribute classifier: the columns prompt_accuracy and is_all_correct.

    Args:
        attribute classifier: in evaluation mode.
        sha256: of its weights.
    """

    def __init__(self, attribute_classifier: AttributeClassifier, sha256: str | None = None) -> None:
        self.attribute_classifier, self.instrument = attribute_classifier, Instrument(ATTRIBUTE_CLASSIFIER, sha256)

    def describe(self) -> dict[str, str | None]:
        """See `ImageRuler.describe`."""
        return self.instrument.describe("accuracy")

    def score(self, images: Tensor, prompts: Sequence[Prompt]) -> dict[str, Tensor]:
        """See `ImageRuler.score`."""
        found = score_prompts(self.attribute_classifier, images, [scene_of(prompt.text) for prompt in prompts])
        return {"prompt_accuracy": found.per_prompt, "is_all_correct": found.is_all_correct}


def score_with_all(rulers: Sequence[ImageRuler], images: Tensor, prompts: Sequence[Prompt]) -> dict[str, Tensor]:
    """Scores images with every ruler: IMAGE_COLUMNS, nan where none measures one, then whatever else they measure."""
    columns = {name: torch.full((len(prompts),), torch.nan) for name in IMAGE_COLUMNS}
    for ruler in rulers:
        columns |= ruler.score(images, prompts)
    return columns
