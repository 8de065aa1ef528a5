"""Training of shift heads: small networks that predict the frozen target's hidden states for later tokens.

The heads are trained on images that the target generated. A head with *shift* s predicts the hidden state for the token
s positions later. This token is to the right of the current token, or below it. Branches are those of guidance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from typing_extensions import override

from lantern.models.target import Target
from lantern.sampling import SamplingConfig, filter_logits
from lantern_methods.shift_heads import ShiftHeads
from lantern_pipeline.data.code_dataset import CodeDataset, step_indices
from lantern_pipeline.training.drafter import freeze
from lantern_pipeline.training.drafter_loss import run_target
from lantern_pipeline.training.loop import Trainer, cosine_rate
from lantern_pipeline.training.optimisers import make_adamw

NUM_EVAL = 64


@dataclass(frozen=True)
class HeadsTraining:
    """Settings of the training of shift heads: keys of config section `heads`, and the guidance scale of decoding."""

    num_steps: int
    batch_size: int
    learning_rate: float
    cfg_scale: float  # above 1, each image is run with its prompt and with the null prompt
    warmup: int = 50  # optimiser steps


class HeadsTrainer(Trainer[ShiftHeads]):
    """Trainer of shift heads. The seed determines the order of the images."""

    def __init__(
        self, heads: ShiftHeads, target: Target, dataset: CodeDataset, training: HeadsTraining, seed: int
    ) -> None:
        self.model = heads.train()
        self.target = freeze(target, torch.float32)
        self.dataset = dataset
        self.training = training
        self.seed = seed
        self.optimiser = make_adamw(heads, training.learning_rate)

    @override
    def step(self, i: int) -> dict[str, float]:
        t = self.training
        pairs = self.predict(self.dataset, step_indices(len(self.dataset), t.batch_size, self.seed, i))
        loss = heads_loss(pairs)
        norm = self.optimiser.step(loss, cosine_rate(i, t.num_steps, warmup=t.warmup))
        return {"loss": float(loss.detach()), "gradient_norm": norm}

    def predict(self, dataset: CodeDataset, indices: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return one pair per head: predicted and the target's hidden states, (branches, images, positions, dim)."""
        codes, hidden = self.run_target(dataset, indices)
        # A head reads the hidden state that predicts token n, and token n, which both branches share.
        x = torch.cat([hidden, self.target.token_embedding(codes).expand_as(hidden)], dim=-1)
        config = self.model.config
        pairs = []
        for shift, head in zip(config.shifts, self.model.heads, strict=True):
            # In decoding, heads for tokens to the right run only in the first line, which has no line above.
            end = config.line_width if shift < config.line_width else hidden.shape[2]
            pairs.append((head(x[:, :, : end - shift]), hidden[:, :, shift:end]))
        return pairs

    def run_target(self, dataset: CodeDataset, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the codes of some images, int64 (images, tokens), and the target's hidden states by teacher forcing.

        From entry n of the hidden states, (branches, images, tokens, dim), the target predicts token n.
        """
        codes, mask, hidden = run_target(self.target, *dataset.batch(indices), with_null=self.training.cfg_scale > 1)
        # The last position of the prompt predicts the first token.
        return codes, hidden[:, mask.shape[1] - 1 :].unflatten(0, (-1, len(codes)))


def heads_loss(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Return the loss, a scalar: the mean over heads of the smooth L1 distance of their `HeadsTrainer.predict` pair."""
    return torch.stack([F.smooth_l1_loss(predicted, wanted) for predicted, wanted in pairs]).mean()


class HeadsValidation:
    """Measurement on the first NUM_EVAL held-out images by teacher forcing, at temperature 1."""

    def __init__(self, trainer: HeadsTrainer, dataset: CodeDataset, sampling: SamplingConfig) -> None:
        self.trainer = trainer
        self.dataset = dataset
        self.sampling = replace(sampling, temperature=1.0)

    @torch.no_grad()
    def __call__(self) -> dict[str, float]:
        """Measure the heads, as trained so far: val_loss, and the `mean_overlap` val_overlap_<shift> of each head.

        The overlap is the probability that a sampled draft is accepted if all drafts before it were accepted.
        """
        pairs = self.trainer.predict(self.dataset, torch.arange(min(NUM_EVAL, len(self.dataset))))
        values = {"val_loss": float(heads_loss(pairs))}
        for shift, (predicted, wanted) in zip(self.trainer.model.config.shifts, pairs, strict=True):
            values[f"val_overlap_{shift}"] = mean_overlap(self.trainer.target, predicted, wanted, self.sampling)
        return values


def mean_overlap(target: Target, predicted: torch.Tensor, wanted: torch.Tensor, sampling: SamplingConfig) -> float:
    """Return the mean over positions of sum_x min(t(x), p(x)), where `predicted` defines p, and `wanted` defines t.

    Hidden states are (branches, ..., dim). One branch means that there is no guidance, or that it is applied already.
    """
    p, t = (
        filter_logits(target.guided_logits(hidden, sampling.cfg_scale), sampling).softmax(-1)
        for hidden in (predicted, wanted)
    )
    return float(torch.minimum(p, t).sum(-1).mean())
