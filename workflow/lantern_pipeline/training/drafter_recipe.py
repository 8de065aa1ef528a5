"""Recipe of the draft model's training.

There are two losses. "guided" (default) compares the distributions of decoding: the guided logits u + s (c - u) of
target and draft model, for conditional and unconditional logits c and u. It runs several passes in which the draft
model continues its own predictions. "published" is the LANTERN authors' loss: SmoothL1 on the hidden state plus 0.1
cross-entropy, unguided, one pass, noise on the input.

The authors' recipe is loss "published", optimiser "adamw", learning_rate 1e-4, weight_decay 0.01, schedule "linear",
warmup_share 0.03, noise 0.2, caption_dropout 0.1, num_epochs 20, precision "bfloat16". It differs from their code on
purpose:

- Their loss mask leaves out the first draft of an image, which every generation needs, and keeps the hidden state after
  the last token, which predicts nothing. Lantern does the opposite.
- `accumulation` accumulates gradients. Their code divides the loss by it, but still updates after every batch.
- Warm-up is a share of all steps; theirs is 3 % of the steps of one epoch. The first step has a rate above 0; theirs
  has rate 0.
- The norm of the gradient is clipped (`max_norm`). Theirs clips each value to 0.5, which changes the direction.
- An image with a dropped caption keeps the mask of its prompt over the null caption, like the unconditional branch in
  generation. Theirs attends to all 120 positions. Dropped images are sampled again in every epoch, not once.
- The draft model does not attend to caption padding. Theirs ignores the mask in training and in decoding.
- Hidden states are computed when they are needed instead of stored, by the target in the precision of the run.
- The noise has their width 0.2 * 512 / L. Here L is one shorter, because the position of the last token is not read.
- Validation images are a split of the data source, not the end of a folder's listing. Acceptance is measured on them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from lantern_pipeline.training.loop import cosine_rate, linear_rate

FINAL_SHARE = 0.02  # learning rate at the end of the cosine, as a share of the highest one


@dataclass(frozen=True)
class DrafterTraining:
    """Training keys of config section `drafter`, and the guidance scale of decoding."""

    num_steps: int
    num_epochs: float | None
    batch_size: int
    accumulation: int
    loss: str
    cfg_scale: float
    passes: int
    noise: float
    caption_dropout: float
    optimiser: str
    matrix_learning_rate: float
    learning_rate: float
    weight_decay: float
    schedule: str
    warmup_share: float | None
    max_norm: float
    precision: str
    num_eval: int
    eval_every: int | None
    warmup: int = 50  # optimiser steps, if warmup_share is null
    hidden_weight: float = 0.1  # weight of the loss on hidden states, added to the guided loss

    def __post_init__(self) -> None:
        if self.is_guided and self.caption_dropout:
            raise ValueError(
                f"drafter.caption_dropout must be 0 under the guided loss, which runs every image without its caption "
                f"too, got {self.caption_dropout}; set drafter.loss to published or drop no captions"
            )

    @property
    def is_guided(self) -> bool:
        """Whether the loss compares guided distributions."""
        return self.loss == "guided"

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the draft model's matrix products and of the target's weights.

        The draft model's weights, the head, probabilities and losses are always float32.
        """
        return torch.bfloat16 if self.precision == "bfloat16" else torch.float32

    def resolve(self, num_images: int) -> DrafterTraining:
        """Return the recipe with epochs and shares of steps converted to numbers of steps.

        Args:
            num_images: number of training images.
        """
        num_steps, warmup = self.num_steps, self.warmup
        if self.num_epochs is not None:
            num_steps = max(1, math.ceil(self.num_epochs * num_images / (self.batch_size * self.accumulation)))
        if self.warmup_share is not None:
            warmup = round(self.warmup_share * num_steps)
        return replace(self, num_steps=num_steps, num_epochs=None, warmup=warmup, warmup_share=None)

    def rate(self, i: int) -> float:
        """Return the factor of the learning rates at step i, in [0, 1]."""
        if self.schedule == "linear":
            return linear_rate(i, self.num_steps, warmup=self.warmup)
        return cosine_rate(i, self.num_steps, warmup=self.warmup, final_share=FINAL_SHARE)
