"""Loss of the draft model, and acceptance of its drafts on held-out images, both by teacher forcing.

The *guided* loss compares the distributions of both models after guidance, in several *passes* of the draft model. From
the second pass on, its inputs are its own predicted hidden states, as in decoding. The *published* loss of LANTERN's
authors has one pass and no guidance.

The *overlap* of a pass is the mean over positions of sum_x min(t(x), p(x)), for target distribution t and draft
distribution p. It is the probability that a sampled draft of this depth is accepted if all drafts before it were.

Shapes: codes int64 (images, tokens); mask of prompts bool (sequences, num_text_tokens); the target's hidden states
(sequences, num_text_tokens + tokens - 1, dim); predicted and wanted hidden states (sequences, tokens - 1, dim), where
the target reads token n + 1 from entry n. With the published loss there is one sequence per image. With the guided loss
there are two: first the conditional sequences of all images, then the unconditional ones.
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
from typing_extensions import override

from lantern.kv_cache import prefix_mask, repeat_rows
from lantern.models.draft import DraftModel
from lantern.models.target import Target
from lantern.sampling import SamplingConfig, filter_logits
from lantern_pipeline.data.code_dataset import CodeDataset
from lantern_pipeline.training.drafter_recipe import DrafterTraining

PUBLISHED_ENTROPY_WEIGHT = 0.1  # as in the code of LANTERN's authors
MIN_DEPTH = 3  # smallest number of depths that validation measures, even if the loss trains fewer passes


class DraftLoss(nn.Module):
    """The guided loss if `recipe.is_guided`, else the published one."""

    def __init__(self, draft: DraftModel, target: Target, recipe: DrafterTraining) -> None:
        super().__init__()
        self.draft, self.recipe = draft, recipe
        self.num_text_tokens = target.config.num_text_tokens
        # A bound method, so that the frozen target is no submodule.
        self.read = target.guided_logits

    @override
    def forward(
        self, codes: torch.Tensor, mask: torch.Tensor, hidden: torch.Tensor, noisy_hidden: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of a batch, a scalar, and the overlaps, float32 (passes,).

        `noisy_hidden` is `hidden` with noise, the input of the draft model.
        """
        predictions = self.predict(codes, mask, noisy_hidden, self.recipe.passes if self.recipe.is_guided else 1)
        return compare(predictions, self.wanted(hidden), self.read, self.recipe)

    def predict(self, codes: torch.Tensor, mask: torch.Tensor, hidden: torch.Tensor, passes: int) -> list[torch.Tensor]:
        """Return the float32 predictions of each pass, computed in the dtype of the training."""
        is_lower = self.recipe.dtype != torch.float32
        # Autocast leaves the weights in float32, so that small updates are not rounded away.
        with torch.autocast(hidden.device.type, self.recipe.dtype) if is_lower else nullcontext():
            predictions = unroll(self.draft, codes, mask, hidden, passes)
        return [part.float() for part in predictions]

    def wanted(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the target's hidden states that the draft model must learn to predict, in float32."""
        # The target reads token 0 from position num_text_tokens - 1. No draft predicts this token.
        return hidden[:, self.num_text_tokens :].float()


def compare(
    predictions: list[torch.Tensor],
    wanted: torch.Tensor,
    read: Callable[[torch.Tensor, float], torch.Tensor],
    recipe: DrafterTraining,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what `DraftLoss.forward` returns. `read` is the target's `guided_logits`."""
    # Branches. `read` guides two and ignores the scale of one. At scale 1 there is no guidance: unconditional sequences
    # then count like those of further images.
    captions = 2 if recipe.is_guided and recipe.cfg_scale > 1 else 1

    def logits(hidden: torch.Tensor) -> torch.Tensor:
        return read(hidden.unflatten(0, (captions, -1)), recipe.cfg_scale)  # (sequences / captions, tokens - 1, vocab)

    with torch.no_grad():
        target_probs = logits(wanted).softmax(-1)
    losses, overlaps = [], []
    for depth, predicted in enumerate(predictions):
        log_probs = logits(predicted).log_softmax(-1)
        valid = slice(depth, None)  # a chain's draft number `depth`, from 0, never predicts the first `depth` positions
        entropy = -(target_probs * log_probs).sum(-1)[:, valid].mean()
        regression = F.smooth_l1_loss(predicted[:, valid], wanted[:, valid])
        # Decoding uses the distribution only. The authors follow EAGLE, which above all regresses the hidden state.
        if recipe.is_guided:
            losses.append(entropy + recipe.hidden_weight * regression)
        else:
            losses.append(regression + PUBLISHED_ENTROPY_WEIGHT * entropy)
        overlaps.append(torch.minimum(target_probs, log_probs.detach().exp()).sum(-1)[:, valid].mean())
    return torch.stack(losses).mean(), torch.stack(overlaps)


def unroll(
    draft: DraftModel, codes: torch.Tensor, mask: torch.Tensor, hidden: torch.Tensor, passes: int
) -> list[torch.Tensor]:
    """Run the draft model on the target's hidden states, then on its own predictions, and return those of each pass.

    Pass d gives each position i the context that a draft at depth d of a chain has in decoding. There, the target's
    hidden states are known only up to position i - d + 1.

    For example, consider position i in pass 3. Up to position i - 2, it attends to keys of pass 1. At position i - 1,
    it attends to the key of pass 2, and at i to the key of pass 3. In general, the key at position i - d + 1 + b is
    from pass b + 1, for b = 0 to d - 1.
    """
    # EAGLE's shift: row r combines hidden state r with token r + 1, and predicts hidden state r + 1. So the prompt has
    # one row fewer. The last hidden state has no row, because there is no next one to predict.
    rows, num_text, n = len(hidden), mask.shape[1] - 1, codes.shape[1] - 1
    codes = repeat_rows(codes, rows)
    # As in decoding: published draft models attend to the padding of prompts.
    text_mask = mask[:, :-1] if draft.config.masks_text_padding else torch.ones_like(mask[:, :-1])
    # Prompt positions have token 0, as in `DraftModel.prefill`.
    tokens = torch.cat([codes.new_zeros(rows, num_text), codes[:, :n]], dim=1)
    cache = _GrowingCache()
    attention = prefix_mask(text_mask, num_text + n, hidden.dtype)
    rotary = draft.rotary[: num_text + n, None]  # None: the axis of heads
    embedded = draft.embed(tokens)
    out = draft.layer(embedded + draft.from_hidden(hidden[:, :-1]), rotary, attention, cache.append)[:, num_text:]
    predictions = [out]
    step = torch.arange(n, device=hidden.device)
    for depth in range(1, passes):
        # Position i continues the prediction at i - 1. Position 0 gets zeros, and `valid` in `compare` leaves it out.
        shifted = F.pad(out, (0, 0, 1, 0))[:, :-1]
        # In the order of the cache: keys of the prompt and of pass 1, then those of pass 2, and so on.
        # `depth` is the number of passes before.
        masks = [attention[:, :, num_text:, :num_text], _band(step, depth, None, hidden.dtype)]
        masks += [_band(step, depth - between, depth - between, hidden.dtype) for between in range(1, depth + 1)]
        # (sequences, 1, n, num_text + (depth + 1) * n)
        joined = torch.cat([part.expand(rows, -1, -1, -1) for part in masks], dim=-1)
        x = embedded[:, num_text:] + draft.from_hidden(shifted)
        out = draft.layer(x, rotary[num_text:], joined, cache.append)
        predictions.append(out)
    return predictions


def _band(step: torch.Tensor, lowest: int, highest: int | None, dtype: torch.dtype) -> torch.Tensor:
    """Return an additive mask (1, 1, n, n) of the keys `lowest` to `highest` (None: all) positions before the query."""
    distance = step[:, None] - step
    visible = distance >= lowest
    if highest is not None:
        visible &= distance <= highest
    return torch.zeros(visible.shape, dtype=dtype, device=step.device).masked_fill(~visible, float("-inf"))[None, None]


class _GrowingCache:
    """Key/value cache to which each pass of `unroll` adds its keys and values, (sequences, positions, heads, dim)."""

    def __init__(self) -> None:
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def append(self, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # Gradients flow through the cache. Writing into a buffer would destroy values that the backward pass needs.
        self.keys.append(key)
        self.values.append(value)
        return torch.cat(self.keys, dim=1), torch.cat(self.values, dim=1)


@torch.no_grad()
def run_target(
    target: Target, codes: torch.Tensor, features: torch.Tensor, mask: torch.Tensor, *, with_null: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute the target's hidden states, and return (codes, mask, hidden states) on the target's device.

    With `with_null`, each image is also run with the null prompt, as guidance needs it. Features are those of
    `Target.forward`.
    """
    codes, features, mask = (part.to(target.device) for part in (codes, features, mask))
    if with_null:
        features, mask = (part.flatten(0, 1) for part in target.with_null(features, mask))
    # No token follows the last one, so it is not an input.
    return codes, mask, target(features, mask, repeat_rows(codes[:, :-1], len(mask)))


class DrafterValidation:
    """Measurement on the first `num_eval` held-out images.

    The sampling settings are those of the run, except that the temperature is 1.
    Guidance is applied even if the draft model is trained without it (with the published loss).
    """

    def __init__(self, loss: DraftLoss, target: Target, dataset: CodeDataset, sampling: SamplingConfig) -> None:
        self.loss, self.target, self.dataset = loss, target, dataset
        self.sampling = replace(sampling, temperature=1.0)
        self.num_images = min(loss.recipe.num_eval, len(dataset))
        # An image of few tokens has fewer depths: none of them predicts token 0.
        self.depth = min(max(MIN_DEPTH, loss.recipe.passes), dataset.codes.shape[1] - 1)

    @torch.no_grad()
    def __call__(self) -> dict[str, float]:
        """Measure the draft model, as trained so far. t and p are the distributions after top-k and top-p.

        Returns:
            - val_loss: the training loss, but without noise in the input and without dropped captions.
            - val_acceptance_<d>: the overlap at depth d.
            - val_greedy_<d>: the share of positions at which both models have the same most probable code.
            - val_expected_length: 1 + a1 + a1 a2 + ..., where a1 is val_acceptance_1 and so on. It estimates the tokens
              per forward pass of a chain of sampled drafts. It is approximate for two reasons. Acceptances are averaged
              over positions before they are multiplied. The context of a draft is the held-out image's codes, but in
              decoding it is the accepted drafts.
        """
        batches = torch.arange(self.num_images).split(self.loss.recipe.batch_size)
        # The last batch may be smaller.
        totals = [len(indices) * self._measure(indices) for indices in batches]
        means = (sum(totals[1:], totals[0]) / self.num_images).tolist()
        acceptance, greedy = means[1 : 1 + self.depth], means[1 + self.depth :]
        values: dict[str, float] = {"val_loss": means[0]}
        values |= {f"val_acceptance_{d}": value for d, value in enumerate(acceptance, 1)}
        values |= {f"val_greedy_{d}": value for d, value in enumerate(greedy, 1)}
        return values | {"val_expected_length": 1 + sum(accumulate(acceptance, mul))}

    def _measure(self, indices: torch.Tensor) -> torch.Tensor:
        """Return means over images: val_loss, val_acceptance of each depth, val_greedy of each depth, float64."""
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
            acceptance.append(overlap[:, depth:].mean())  # as `valid` in `compare`
            greedy.append((drafted.argmax(-1) == best)[:, depth:].float().mean())
        return torch.stack([loss, *acceptance, *greedy]).double()

    def _guided_logits(self, doubled: torch.Tensor) -> torch.Tensor:
        """Convert hidden states (2 x images, n, dim) to logits after guidance, (images, n, vocab)."""
        # Without guidance only the conditional branch counts.
        captions = doubled.unflatten(0, (2, -1))[: 1 + self.sampling.is_guided]
        return self.loss.read(captions, self.sampling.cfg_scale)
