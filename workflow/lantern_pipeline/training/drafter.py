"""Training of the draft model with a frozen target.

The order of images and all random numbers are pure functions of (seed, batch, position in the batch).
"""

from __future__ import annotations

import hashlib

import torch

from lantern.models.draft import DraftModel
from lantern.models.target import Target
from lantern.models.transformer import cast_weights
from lantern_pipeline.data.code_dataset import CodeDataset, step_indices
from lantern_pipeline.training.drafter_loss import DraftLoss, run_target
from lantern_pipeline.training.drafter_recipe import DrafterTraining
from lantern_pipeline.training.loop import Trainer
from lantern_pipeline.training.optimisers import Optimiser, make_adamw, make_muon
from lantern_pipeline.training.target import drop_prompts


class DrafterTrainer(Trainer[DraftModel]):
    """Trainer of a float32 draft model with a target on the same device.

    The trainer freezes the target, and for bfloat16 casts it in place. The recipe must be resolved
    (`DrafterTraining.resolve`). The seed determines order, noise and caption dropout.
    """

    def __init__(
        self, draft: DraftModel, target: Target, dataset: CodeDataset, recipe: DrafterTraining, seed: int
    ) -> None:
        self.model, self.target = draft.train(), freeze(target, recipe.dtype)
        self.dataset, self.recipe, self.seed = dataset, recipe, seed
        self.model.token_embedding.requires_grad_(recipe.is_guided)
        self.loss = DraftLoss(draft, self.target, recipe)
        self.optimiser = make_optimiser(draft, recipe)

    def step(self, i: int) -> dict[str, float]:
        """Run one optimiser step on the batches of step i.

        Returns:
            loss, gradient_norm, and overlap_<d> at each depth d, see `DraftLoss`.
        """
        num_batches = self.recipe.accumulation
        self.optimiser.zero_grad()
        total = torch.zeros((), device=self.target.device)
        for j in range(num_batches):
            loss, overlaps = self.loss(*self._batch(i * num_batches + j))
            (loss / num_batches).backward()
            total = total + torch.cat([loss.detach()[None], overlaps])
        norm = self.optimiser.update(self.recipe.rate(i))
        loss, *overlaps = (total / num_batches).tolist()
        return {"loss": loss, "gradient_norm": norm} | {f"overlap_{d}": value for d, value in enumerate(overlaps, 1)}

    def _batch(self, i: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return batch i as the loss takes it: codes, mask, hidden states, noisy hidden states."""
        t = self.recipe
        indices = step_indices(len(self.dataset), t.batch_size, self.seed, i)
        draws = [slot_generator(self.seed, i, slot) for slot in range(t.batch_size)]
        codes, features, mask = self.dataset.batch(indices)
        if t.caption_dropout:
            is_dropped = torch.cat([torch.rand(1, generator=draw) for draw in draws]) < t.caption_dropout
            parts = (part.to(self.target.device) for part in (features, mask, is_dropped))
            features, mask = drop_prompts(self.target, *parts)
        codes, mask, hidden = run_target(self.target, codes, features, mask, with_null=t.is_guided)
        if not t.noise:
            return codes, mask, hidden, hidden
        # Every image has different noise, with guidance one sample per branch: (images, branches, positions, dim).
        # Then all conditional sequences come first.
        shape = (len(hidden) // len(draws), *hidden.shape[1:])
        jitter = torch.stack([torch.rand(shape, generator=draw) - 0.5 for draw in draws]).transpose(0, 1).flatten(0, 1)
        return codes, mask, hidden, hidden + jitter.to(hidden.device) * (t.noise * 512 / hidden.shape[1])


def make_optimiser(draft: DraftModel, recipe: DrafterTraining) -> Optimiser:
    """Create the recipe's optimiser of the trained parameters."""
    if recipe.optimiser == "adamw":
        return make_adamw(draft, recipe.learning_rate, recipe.max_norm, recipe.weight_decay)
    return make_muon(draft, recipe.matrix_learning_rate, recipe.learning_rate, recipe.max_norm, recipe.weight_decay)


def freeze(target: Target, dtype: torch.dtype) -> Target:
    """Freeze a target in place and cast it. Its head stays float32, because losses and probabilities use it."""
    return cast_weights(target, dtype).eval().requires_grad_(False)


def slot_generator(seed: int, i: int, slot: int) -> torch.Generator:
    """Return the random generator of one image of batch i; `slot` is its position in the whole batch."""
    digest = hashlib.blake2b(f"{seed} {i} {slot}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little", signed=True))
