"""Training of the draft model against a frozen target, on one process or on several that share every batch.

The order of images and whatever else is random are pure functions of (seed, batch, place in the batch), so that the
number of processes changes nothing but rounding.
"""

from __future__ import annotations

import hashlib
from contextlib import nullcontext

import torch
from accelerate import Accelerator

from lantern.models.draft import DraftModel
from lantern.models.target import Target
from lantern.models.transformer import cast_weights
from lantern_pipeline.data.code_dataset import CodeDataset, step_indices
from lantern_pipeline.training.distributed import share
from lantern_pipeline.training.drafter_loss import DraftLoss, run_target
from lantern_pipeline.training.drafter_recipe import DrafterTraining
from lantern_pipeline.training.loop import Trainer
from lantern_pipeline.training.optimisers import Optimiser, make_adamw, make_muon
from lantern_pipeline.training.target import drop_prompts


class DrafterTrainer(Trainer):
    """Trains a float32 draft model against a target that it freezes and, for bfloat16, casts in place.

    Every process drives one and takes its share of a batch's images; gradients and logged values are means over all of
    them. The recipe is resolved (`DrafterTraining.resolve`); the seed is that of order, noise and caption dropout.
    """

    def __init__(
        self,
        draft: DraftModel,
        target: Target,
        dataset: CodeDataset,
        recipe: DrafterTraining,
        seed: int,
        accelerator: Accelerator,
    ) -> None:
        if recipe.batch_size % accelerator.num_processes:
            raise ValueError(
                f"drafter.batch_size must be a multiple of the number of processes, {accelerator.num_processes}, got "
                f"{recipe.batch_size}; change it or train on another number of GPUs"
            )
        self.model, self.target = draft.train(), freeze(target, recipe.dtype).to(accelerator.device)
        self.dataset, self.recipe, self.seed, self.accelerator = dataset, recipe, seed, accelerator
        self.model.token_embedding.requires_grad_(recipe.is_guided)
        self.loss = DraftLoss(draft, self.target, recipe)
        self.shared_loss = share(accelerator, self.loss)
        self.optimiser = make_optimiser(draft, recipe)

    def step(self, i: int) -> dict[str, float]:
        """One optimiser step on the batches of step i."""
        num_batches = self.recipe.accumulation
        self.optimiser.zero_grad()
        total = torch.zeros((), device=self.accelerator.device)
        for j in range(num_batches):
            is_last = j == num_batches - 1  # gradients meet those of the other processes once a step
            with nullcontext() if is_last else self.accelerator.no_sync(self.shared_loss):
                loss, overlaps = self.shared_loss(*self._batch(i * num_batches + j))
                self.accelerator.backward(loss / num_batches)
            total = total + torch.cat([loss.detach()[None], overlaps])
        norm = self.optimiser.update(self.recipe.rate(i))
        loss, *overlaps = (self.accelerator.reduce(total, "mean") / num_batches).tolist()
        return {"loss": loss, "gradient_norm": norm} | {f"overlap_{d}": value for d, value in enumerate(overlaps, 1)}

    def _batch(self, i: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """This process's rows of batch i as the loss takes them: codes, mask, hidden states, noisy hidden states."""
        t, rank, num_processes = self.recipe, self.accelerator.process_index, self.accelerator.num_processes
        indices = step_indices(len(self.dataset), t.batch_size, self.seed, i)[rank::num_processes]
        draws = [slot_generator(self.seed, i, slot) for slot in range(rank, t.batch_size, num_processes)]
        codes, features, mask = self.dataset.batch(indices)
        if t.caption_dropout:
            is_dropped = torch.cat([torch.rand(1, generator=draw) for draw in draws]) < t.caption_dropout
            parts = (part.to(self.target.device) for part in (features, mask, is_dropped))
            features, mask = drop_prompts(self.target, *parts)
        codes, mask, hidden = run_target(self.target, codes, features, mask, with_null=t.is_guided)
        if not t.noise:
            return codes, mask, hidden, hidden
        # Every image has noise of its own, a guided one two: (images, copies, rows, dim), then captioned rows first.
        shape = (len(hidden) // len(draws), *hidden.shape[1:])
        jitter = torch.stack([torch.rand(shape, generator=draw) - 0.5 for draw in draws]).transpose(0, 1).flatten(0, 1)
        return codes, mask, hidden, hidden + jitter.to(hidden.device) * (t.noise * 512 / hidden.shape[1])


def make_optimiser(draft: DraftModel, recipe: DrafterTraining) -> Optimiser:
    """The recipe's optimiser over the parameters that are trained."""
    if recipe.optimiser == "adamw":
        return make_adamw(draft, recipe.learning_rate, recipe.max_norm, recipe.weight_decay)
    return make_muon(draft, recipe.matrix_learning_rate, recipe.learning_rate, recipe.max_norm, recipe.weight_decay)


def freeze(target: Target, dtype: torch.dtype) -> Target:
    """Freezes a target in place and casts it; its head, which losses and probabilities read, stays float32."""
    return cast_weights(target, dtype).eval().requires_grad_(False)


def slot_generator(seed: int, i: int, slot: int) -> torch.Generator:
    """Randomness of one image of batch i; `slot` is its place in the whole batch."""
    digest = hashlib.blake2b(f"{seed} {i} {slot}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little", signed=True))
