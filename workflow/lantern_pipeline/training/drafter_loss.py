"""Loss of the draft model, and acceptance of its drafts on held-out images.

There are two losses. The *guided* loss compares the distributions of both models after guidance, in several passes of
the draft model. From the second pass on, its inputs are its own predicted hidden states, as in decoding. The
*published* loss of LANTERN's authors has one pass and no guidance.

In shapes, `sequences` is the number of token sequences of a batch. With the published loss there is one sequence per
image, and `sequences` equals `images`. With the guided loss there are two, and `sequences` is 2 x images: first the
conditional sequences of all images, then the unconditional ones.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import accumulate
from operator import mul

import torch
import torch.nn.functional as F
from torch import nn

from lantern.attention_mask import prefix_mask
from lantern.kv_cache import repeat_rows
from lantern.models.draft import DraftModel
from lantern.models.target import Target
from lantern.sampling import SamplingConfig, filter_logits
from lantern_pipeline.data.code_dataset import CodeDataset
from lantern_pipeline.training.drafter_recipe import DrafterTraining

PUBLISHED_ENTROPY_WEIGHT = 0.1
MIN_DEPTH = 3  # smallest number of depths that validation measures, even if the loss trains fewer passes


class DraftLoss(nn.Module):
    """Loss of the draft model, as a module that contains the draft model.

    The target is frozen. Only its head is used here, which turns hidden states into logits.
    """

    def __init__(self, draft: DraftModel, target: Target, recipe: DrafterTraining) -> None:
        super().__init__()
        self.draft, self.recipe = draft, recipe
        self.num_text_tokens = target.config.num_text_tokens
        self.read = target.guided_logits

    def forward(
        self, codes: torch.Tensor, mask: torch.Tensor, hidden: torch.Tensor, noisy_hidden: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the loss of a batch.

        Args:
            codes: int64 (images, tokens).
            mask: bool (sequences, num_text_tokens), True for tokens of the prompt.
            hidden: the target's hidden states, (sequences, num_text_tokens + tokens - 1, dim). With the guided loss
                there are two sequences per image, the conditional ones of all images first. Otherwise there is one.
            noisy_hidden: these hidden states with noise, as input of the draft model.

        Returns:
            (scalar loss, overlaps). overlaps has one value for each depth of drafting, float32 (passes,). It is the
            mean over positions of sum_x min(t(x), p(x)), for target distribution t and draft distribution p.
        """
        predictions = self.predict(codes, mask, noisy_hidden, self.recipe.passes if self.recipe.is_guided else 1)
        return compare(predictions, self.wanted(hidden), self.read, self.recipe)

    def predict(self, codes: torch.Tensor, mask: torch.Tensor, hidden: torch.Tensor, passes: int) -> list[torch.Tensor]:
        """Predict the target's hidden states by the draft model, in the dtype of the training.

        The arguments are those of `unroll`.

        Returns:
            One float32 tensor per pass, (sequences, tokens - 1, dim).
        """
        is_lower = self.recipe.dtype != torch.float32
        with torch.autocast(hidden.device.type, self.recipe.dtype) if is_lower else nullcontext():
            predictions = unroll(self.draft, codes, mask, hidden, passes)
        return [part.float() for part in predictions]

    def wanted(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the target's hidden states that the draft model must learn to predict.

        Args:
            hidden: the target's hidden states, as in `forward`.

        Returns:
            float32 (sequences, tokens - 1, dim). From entry n, the target predicts token n + 1.
        """
        return hidden[:, self.num_text_tokens :].float()


def compare(
    predictions: list[torch.Tensor],
    wanted: torch.Tensor,
    read: Callable[[torch.Tensor, float], torch.Tensor],
    recipe: DrafterTraining,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compare predicted hidden states with the target's, and compute the loss.

    Args:
        predictions: predicted hidden states of each pass, (sequences, tokens - 1, dim).
        wanted: the target's hidden states, (sequences, tokens - 1, dim).
        read: function `Target.guided_logits`, which turns hidden states into logits.
        recipe: settings of the training, which choose the loss.

    Returns:
        (scalar loss, overlaps), float32. overlaps has one value per pass, (passes,). It is the mean over positions of
        sum_x min(t(x), p(x)), for target distribution t and draft distribution p.
    """
    captions = 2 if recipe.is_guided and recipe.cfg_scale > 1 else 1

    def logits(hidden: torch.Tensor) -> torch.Tensor:
        return read(hidden.unflatten(0, (captions, -1)), recipe.cfg_scale)

    with torch.no_grad():
        target_probs = logits(wanted).softmax(-1)
    losses, overlaps = [], []
    for depth, predicted in enumerate(predictions):
        log_probs = logits(predicted).log_softmax(-1)
        valid = slice(depth, None)  # no draft of this depth predicts the first `depth` positions
        entropy = -(target_probs * log_probs).sum(-1)[:, valid].mean()
        regression = F.smooth_l1_loss(predicted[:, valid], wanted[:, valid])
        if recipe.is_guided:
            losses.append(entropy + recipe.hidden_weight * regression)
        else:
            losses.append(regression + PUBLISHED_ENTROPY_WEIGHT * entropy)
        overlaps.append(torch.minimum(target_probs, log_probs.detach().exp()).sum(-1)[:, valid].mean())
    return torch.stack(losses).mean(), torch.stack(overlaps)


def unroll(
    draft: DraftModel, codes: torch.Tensor, mask: torch.Tensor, hidden: torch.Tensor, passes: int
) -> list[torch.Tensor]:
    """Run the draft model in several passes on its own predictions, as in decoding.

    The inputs of pass 1 are the target's hidden states. The inputs of each later pass are the draft model's predictions
    in the pass before. So pass d gives each position n the context that a draft at depth d of a chain has in decoding.
    There, the target's hidden states are known only up to position n - d + 1.

    For example, consider position n in pass 3. Up to position n - 2, it attends to keys of pass 1. At position n - 1,
    it attends to the key of pass 2, and at n to the key of pass 3. In general, the key at position n - d + 1 + b is
    from pass b + 1.

    Args:
        draft: the draft model.
        codes: int64 (images, tokens).
        mask: bool (sequences, num_text_tokens), True for tokens of the prompt.
        hidden: the target's hidden states, (sequences, num_text_tokens + tokens - 1, dim). The last position is not
            used.
        passes: number of passes, which is the largest depth of a draft.

    Returns:
        One tensor per pass, (sequences, tokens - 1, dim). Entry n is the predicted hidden state for token n + 1.
    """
    rows, num_text, n = len(hidden), mask.shape[1] - 1, codes.shape[1] - 1
    codes = repeat_rows(codes, rows)
    text_mask = mask[:, :-1] if draft.config.masks_text_padding else torch.ones_like(mask[:, :-1])
    tokens = torch.cat([codes.new_zeros(rows, num_text), codes[:, :n]], dim=1)
    cache = _GrowingCache()
    attention = prefix_mask(text_mask, num_text + n, hidden.dtype)
    rotary = draft.rotary[: num_text + n, None]
    embedded = draft.embed(tokens)
    out = draft.layer(embedded + draft.from_hidden(hidden[:, :-1]), rotary, attention, cache.append)[:, num_text:]
    predictions = [out]
    step = torch.arange(n, device=hidden.device)
    for depth in range(1, passes):
        shifted = F.pad(out, (0, 0, 1, 0))[:, :-1]  # position n continues the prediction at position n - 1
        masks = [attention[:, :, num_text:, :num_text], _band(step, depth, None, hidden.dtype)]
        masks += [_band(step, depth - between, depth - between, hidden.dtype) for between in range(1, depth + 1)]
        joined = torch.cat([part.expand(rows, -1, -1, -1) for part in masks], dim=-1)
        x = embedded[:, num_text:] + draft.from_hidden(shifted)
        out = draft.layer(x, rotary[num_text:], joined, cache.append)
        predictions.append(out)
    return predictions


def _band(step: torch.Tensor, lowest: int, highest: int | None, dtype: torch.dtype) -> torch.Tensor:
    """Return an additive attention mask that lets a query attend to keys at certain distances before it.

    The distance of a key is the query's position minus the key's position. For example, lowest = 1 and highest = 2
    admit the two positions before the query.

    Args:
        step: positions of the queries, int64 (n,). The keys have the same positions.
        lowest: smallest distance at which a query attends. 0 is the query's own position.
        highest: largest distance at which a query attends. None for no limit.
        dtype: dtype of the mask.

    Returns:
        (1, 1, queries, keys), 0 for keys that a query attends to and -inf for others.
    """
    distance = step[:, None] - step
    visible = distance >= lowest
    if highest is not None:
        visible &= distance <= highest
    return torch.zeros(visible.shape, dtype=dtype, device=step.device).masked_fill(~visible, float("-inf"))[None, None]


class _GrowingCache:
    """Key/value cache of the draft model in training, to which each pass of `unroll` adds its keys and values.

    Gradients flow through the cache, unlike in decoding.
    """

    def __init__(self) -> None:
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def append(self, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys.append(key)
        self.values.append(value)
        return torch.cat(self.keys, dim=1), torch.cat(self.values, dim=1)


@torch.no_grad()
def run_target(
    target: Target, codes: torch.Tensor, features: torch.Tensor, mask: torch.Tensor, *, with_null: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute the target's hidden states of images by teacher forcing, on the target's device.

    Args:
        target: the target.
        codes: int64 (images, tokens).
        features: features of the prompts, as in `Target.forward`.
        mask: mask of the prompts, as in `Target.forward`.
        with_null: whether to run the images with the null prompt as well, as guidance needs it. Then there are two
            sequences per image, the conditional ones of all images first.

    Returns:
        The tensors codes, mask and hidden states, on the target's device:

        - codes: int64 (images, tokens).
        - mask: mask of the prompts, bool (sequences, num_text_tokens).
        - hidden states: (sequences, num_text_tokens + tokens - 1, dim).
    """
    codes, features, mask = (part.to(target.device) for part in (codes, features, mask))
    if with_null:
        features, mask = (part.flatten(0, 1) for part in target.with_null(features, mask))
    return codes, mask, target(features, mask, repeat_rows(codes[:, :-1], len(mask)))


class DrafterValidation:
    """Measurement of how often drafts of the draft model would be accepted, on held-out images, by teacher forcing.

    The first `num_eval` images are used. The sampling settings are those of the run, except that the temperature is 1.
    Guidance is applied even if the draft model is trained without it (with the published loss).
    """

    def __init__(self, loss: DraftLoss, target: Target, dataset: CodeDataset, sampling: SamplingConfig) -> None:
        self.loss, self.target, self.dataset = loss, target, dataset
        self.sampling = replace(sampling, temperature=1.0)
        self.num_images = min(loss.recipe.num_eval, len(dataset))
        self.depth = min(max(MIN_DEPTH, loss.recipe.passes), dataset.codes.shape[1] - 1)

    @torch.no_grad()
    def __call__(self) -> dict[str, float]:
        """Measure the draft model, as trained so far, on the held-out images.

        Below, t and p are the target's and the draft model's distribution after top-k and top-p.

        Returns:
            Name -> value:

            - val_loss: the training loss, but without noise in the input and without dropped captions.
            - val_acceptance_<d>: the mean over positions of sum_x min(t(x), p(x)). It is the probability that a sampled
              draft at depth d is accepted if all drafts before it were accepted.
            - val_greedy_<d>: the share of positions at which both models have the same most probable code.
            - val_expected_length: 1 + a1 + a1 a2 + ..., where a1 is val_acceptance_1 and so on. It estimates the tokens
              per forward pass of a chain of sampled drafts. It is approximate for two reasons. Acceptances are averaged
              over positions before they are multiplied. The context of a draft is the held-out image's codes, but in
              decoding it is the accepted drafts.
        """
        batches = torch.arange(self.num_images).split(self.loss.recipe.batch_size)
        totals = [len(indices) * self._measure(indices) for indices in batches]
        means = (sum(totals[1:], totals[0]) / self.num_images).tolist()
        acceptance, greedy = means[1 : 1 + self.depth], means[1 + self.depth :]
        values: dict[str, float] = {"val_loss": means[0]}
        values |= {f"val_acceptance_{d}": value for d, value in enumerate(acceptance, 1)}
        values |= {f"val_greedy_{d}": value for d, value in enumerate(greedy, 1)}
        return values | {"val_expected_length": 1 + sum(accumulate(acceptance, mul))}

    def _measure(self, indices: torch.Tensor) -> torch.Tensor:
        """Compute the measures that `__call__` explains, on some held-out images.

        Args:
            indices: indices of the images in the dataset, int64 (images,).

        Returns:
            Means over the images, float64 (1 + 2 * depths,): val_loss, then val_acceptance of each depth, then
            val_greedy of each depth.
        """
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
            acceptance.append(overlap[:, depth:].mean())  # no draft of this depth predicts the first `depth` positions
            greedy.append((drafted.argmax(-1) == best)[:, depth:].float().mean())
        return torch.stack([loss, *acceptance, *greedy]).double()

    def _guided_logits(self, doubled: torch.Tensor) -> torch.Tensor:
        """Convert hidden states to logits after guidance.

        Args:
            doubled: hidden states of the conditional sequences, followed by those of the unconditional ones, (2 x
                images, tokens - 1, dim).

        Returns:
            (images, tokens - 1, vocab).
        """
        captions = doubled.unflatten(0, (2, -1))[: 1 + self.sampling.is_guided]
        return self.loss.read(captions, self.sampling.cfg_scale)
