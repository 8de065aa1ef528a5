"""Settings of the draft model's training (the *recipe*), and how they differ from those of LANTERN's authors.

Loss "guided" (default) compares the distributions that decoding uses, after guidance, in several passes. In these, the
draft model continues its own predictions. Loss "published" is that of LANTERN's authors: SmoothL1 on the hidden state
plus 0.1 times the cross-entropy. It has no guidance, one pass, and noise on the input.

The authors' recipe is loss "published", optimiser "adamw", learning_rate 1e-4, weight_decay 0.01, schedule "linear",
warmup_share 0.03, noise 0.2, caption_dropout 0.1, num_epochs 20, precision "bfloat16". With these settings, Lantern
still differs from their code on purpose:

- Their loss mask leaves out the first draft of an image, which every generation needs. It keeps the hidden state after
  the last token, which predicts nothing. Lantern does the opposite in both cases.
- `accumulation` accumulates gradients. Their code divides the loss by this number, but still updates after every batch.
- Warm-up is a share of all steps. Theirs is 3 % of the steps of one epoch. In Lantern the first step has a learning
  rate above 0, in theirs 0.
- Lantern clips the norm of the gradient (`max_norm`). Their code clips each value to 0.5, which changes the direction.
- If a caption is dropped, Lantern applies the mask of its prompt to the null caption, as the unconditional branch does
  in generation. Their code attends to all 120 positions. Lantern chooses again in every epoch which captions are
  dropped. Their code chooses once for all epochs.
- The draft model does not attend to the padding of captions. Their code ignores the mask in training and in decoding.
- Hidden states are computed when they are needed, by the target in the precision of this recipe. Their code stores
  them.
- The noise is uniform. Its width is 0.2 * 512 / L in their code and in Lantern, where L is the number of positions.
  Lantern's L is smaller by one, because the position of the last token is not used.
- Validation images are a split of the data source. In their code, they are the last files of a folder. Lantern also
  measures the acceptance on them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from lantern_pipeline.training.loop import cosine_rate, linear_rate

FINAL_SHARE = 0.02  # learning rate at the end of the cosine schedule, as a share of the highest learning rate


@dataclass(frozen=True)
class DrafterTraining:
    """Keys of config section `drafter`, which config.yaml explains, and the guidance scale of decoding."""

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
    warmup: int = 50  # steps, if warmup_share is None
    hidden_weight: float = 0.1  # weight of the SmoothL1 distance of hidden states in the guided loss

    def __post_init__(self) -> None:
        # The unconditional branch of a dropped caption would be the same sequence again.
        if self.is_guided and self.caption_dropout:
            raise ValueError(
                f"drafter.caption_dropout must be 0 under the guided loss, which runs every image without its caption "
                f"too, got {self.caption_dropout}; set drafter.loss to published or drop no captions"
            )

    @property
    def is_guided(self) -> bool:
        """Whether the loss is "guided", so that each image is also run without its caption."""
        return self.loss == "guided"

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the draft model's matrix products and of the frozen target's weights.

        The draft model's weights, the target's head, probabilities and losses are always float32.
        """
        return torch.bfloat16 if self.precision == "bfloat16" else torch.float32

    def resolve(self, num_images: int) -> DrafterTraining:
        """Return the settings with the length of training and of warm-up in steps, not in epochs or shares of steps."""
        num_steps, warmup = self.num_steps, self.warmup
        if self.num_epochs is not None:
            # A step uses `accumulation` batches.
            num_steps = max(1, math.ceil(self.num_epochs * num_images / (self.batch_size * self.accumulation)))
        if self.warmup_share is not None:
            warmup = round(self.warmup_share * num_steps)
        return replace(self, num_steps=num_steps, num_epochs=None, warmup=warmup, warmup_share=None)

    def rate(self, i: int) -> float:
        """Return the factor in [0, 1] by which the learning rates are multiplied at step i."""
        if self.schedule == "linear":
            return linear_rate(i, self.num_steps, warmup=self.warmup)
        return cosine_rate(i, self.num_steps, warmup=self.warmup, final_share=FINAL_SHARE)
