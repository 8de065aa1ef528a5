"""How often drafts would be accepted on held-out images, measured while a draft model is trained."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from operator import mul

import torch
from accelerate import Accelerator

from lantern.models.target import TargetModel
from lantern.sampling import SamplingConfig, filter_logits, guide
from lantern_pipeline.data.code_dataset import CodeDataset
from lantern_pipeline.training.drafter import run_target
from lantern_pipeline.training.drafter_loss import DraftLoss, compare

MIN_DEPTH = 3  # drafts deep that is measured, whatever the loss trains


class DrafterValidation:
    """Teacher-forced acceptance under the run's own sampling settings, but at temperature 1, on the first `num_eval`
    held-out images; call it in every process alike. The loss is not the distributed wrapper around it.
    """

    def __init__(
        self,
        loss: DraftLoss,
        target: TargetModel,
        dataset: CodeDataset,
        sampling: SamplingConfig,
        accelerator: Accelerator,
    ) -> None:
        self.loss, self.target, self.dataset, self.accelerator = loss, target, dataset, accelerator
        self.sampling = replace(sampling, temperature=1.0)
        self.num_images = min(loss.recipe.num_eval, len(dataset))
        if self.num_images < 1:
            raise ValueError(
                f"validation needs at least 1 held-out image, got drafter.num_eval {loss.recipe.num_eval} and "
                f"{len(dataset)} images; raise drafter.num_eval or hold images out"
            )
        self.depth = min(max(MIN_DEPTH, loss.recipe.passes), dataset.codes.shape[1] - 1)

    @torch.no_grad()
    def __call__(self) -> dict[str, float]:
        """Measures the draft model as it is.

        val_loss: the training loss, without noise and dropped captions. val_acceptance_<d>: mean over positions of
        sum_x min(t(x), p(x)), filtered target and draft distribution: the probability that a sampled draft at depth d
        is accepted, given that the drafts before it were. val_greedy_<d>: share of positions where the most probable
        codes of both agree. val_expected_length: 1 + a1 + a1 a2 + ..., tokens per target forward of a chain of sampled
        drafts; an approximation, since depths are averaged over positions before they are multiplied, and the image's
        codes stand in for drafts that were accepted.
        """
        rank, num_processes = self.accelerator.process_index, self.accelerator.num_processes
        mine = torch.arange(self.num_images)[rank::num_processes]
        total = torch.zeros(1 + 2 * self.depth, dtype=torch.float64, device=self.accelerator.device)
        for indices in mine.split(max(1, self.loss.recipe.batch_size // num_processes)) if len(mine) else ():
            total += len(indices) * self._measure(indices)
        means = (self.accelerator.reduce(total, "sum") / self.num_images).tolist()
        acceptance, greedy = means[1 : 1 + self.depth], means[1 + self.depth :]
        values = {"val_loss": means[0]}
        values |= {f"val_acceptance_{d}": value for d, value in enumerate(acceptance, 1)}
        values |= {f"val_greedy_{d}": value for d, value in enumerate(greedy, 1)}
        return values | {"val_expected_length": 1 + sum(accumulate(acceptance, mul))}

    def _measure(self, indices: torch.Tensor) -> torch.Tensor:
        """Means over some images: loss, acceptance at each depth, greedy agreement at each depth; float64."""
        recipe = self.loss.recipe
        codes, mask, hidden = run_target(self.target, *self.dataset.batch(indices), with_null=True)
        predictions, wanted = self.loss.predict(codes, mask, hidden, self.depth), self.loss.wanted(hidden)
        if recipe.is_guided:
            loss, _ = compare(predictions[: recipe.passes], wanted, self.loss.read, recipe)
        else:
            loss, _ = compare([predictions[0][: len(indices)]], wanted[: len(indices)], self.loss.read, recipe)
        logits = self._guided_logits(wanted)
        probs, best = filter_logits(logits, self.sampling).softmax(-1), logits.argmax(-1)
        acceptance, greedy = [], []
        for depth, predicted in enumerate(predictions):
            drafted = self._guided_logits(predicted)
            overlap = torch.minimum(probs, filter_logits(drafted, self.sampling).softmax(-1)).sum(-1)
            acceptance.append(overlap[:, depth:].mean())  # the first `depth` rows have no draft of that depth
            greedy.append((drafted.argmax(-1) == best)[:, depth:].float().mean())
        return torch.stack([loss, *acceptance, *greedy]).double()

    def _guided_logits(self, doubled: torch.Tensor) -> torch.Tensor:
        """Hidden states, captioned rows first, to logits (images, tokens - 1, vocab)."""
        if self.sampling.is_guided:
            return self.loss.read(guide(doubled, self.sampling.cfg_scale))
        return self.loss.read(doubled.chunk(2)[0])
