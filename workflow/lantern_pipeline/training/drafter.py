"""Training of the draft model.

An interrupted training can resume with the same data. The order of images depends only on the seed and the number of
the batch. Noise and dropped captions depend also on the position of an image in the batch.
"""

from __future__ import annotations

import hashlib

import torch
from typing_extensions import override

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
    """Trainer of a float32 draft model, which must be on the target's device.

    The *recipe* has the settings of the training, after `DrafterTraining.resolve`. The target is frozen and cast to the
    recipe's dtype in place.
    """

    def __init__(
        self, draft: DraftModel, target: Target, dataset: CodeDataset, recipe: DrafterTraining, seed: int
    ) -> None:
        self.model, self.target = draft.train(), freeze(target, recipe.dtype)
        self.dataset, self.recipe, self.seed = dataset, recipe, seed
        # The authors' recipe keeps the embedding that the draft model has copied from the target.
        self.model.token_embedding.requires_grad_(recipe.is_guided)
        self.loss = DraftLoss(draft, self.target, recipe)
        self.optimiser = make_optimiser(draft, recipe)

    @override
    def step(self, i: int) -> dict[str, float]:
        num_batches = self.recipe.accumulation
        self.optimiser.zero_grad()
        total = torch.zeros((), device=self.target.device)
        # A `backward` per batch, so that the graph of only one batch is in memory.
        for j in range(num_batches):
            loss, overlaps = self.loss(*self._batch(i * num_batches + j))
            (loss / num_batches).backward()
            total = total + torch.cat([loss.detach()[None], overlaps])  # (1 + passes,)
        # Gradients have added up to those of the mean loss.
        norm = self.optimiser.update(self.recipe.rate(i))
        loss, *overlaps = (total / num_batches).tolist()
        return {"loss": loss, "gradient_norm": norm} | {f"overlap_{d}": value for d, value in enumerate(overlaps, 1)}

    def _batch(self, i: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Run the target on batch i, and return the arguments of `DraftLoss.forward`."""
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
        # Every image has different noise, and with guidance also each of its branches. The noise is sampled as (images,
        # branches, positions, dim) and then reordered like `hidden`, with all conditional sequences first.
        shape = (len(hidden) // len(draws), *hidden.shape[1:])
        jitter = torch.stack([torch.rand(shape, generator=draw) - 0.5 for draw in draws]).transpose(0, 1).flatten(0, 1)
        # Uniform noise of width noise * 512 / positions, as in the authors' code.
        return codes, mask, hidden, hidden + jitter.to(hidden.device) * (t.noise * 512 / hidden.shape[1])


def make_optimiser(draft: DraftModel, recipe: DrafterTraining) -> Optimiser:
    """Create the optimiser that the recipe names, for the trained parameters of the draft model."""
    if recipe.optimiser == "adamw":
        return make_adamw(draft, recipe.learning_rate, recipe.max_norm, recipe.weight_decay)
    return make_muon(draft, recipe.matrix_learning_rate, recipe.learning_rate, recipe.max_norm, recipe.weight_decay)


def freeze(target: Target, dtype: torch.dtype) -> Target:
    """Freeze a target in place, cast its weights to `dtype`, and return it.

    The head stays float32, because losses and probabilities are computed from its output.
    """
    return cast_weights(target, dtype).eval().requires_grad_(False)


def slot_generator(seed: int, i: int, slot: int) -> torch.Generator:
    """Return the generator of image `slot` of batch i, so that its noise does not depend on the other images."""
    # A hash, because sums of the three numbers would give the same seed to several triples.
    digest = hashlib.blake2b(f"{seed} {i} {slot}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little", signed=True))
