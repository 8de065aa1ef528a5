"""Training of the draft model against a frozen target.

Two losses. "guided" (default) compares what decoding compares: the guided distributions u + s (c - u) of target and
draft model, on pairs of captioned and null rows, over several passes in which the draft model continues its own
predictions. "published" is the LANTERN authors' recipe: SmoothL1 on the hidden state plus 0.1 cross-entropy, unguided,
one pass, noise on the input. Against their code, both train the first draft position too and clip the gradient's norm,
not its values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from lantern.models.draft import DraftConfig, DraftModel
from lantern.models.target import TargetModel, prefix_mask
from lantern.sampling import guide
from lantern.training.data import CodeDataset, step_indices
from lantern.training.loop import cosine_rate
from lantern.training.optimiser import MuonAdamW

LOSSES = ("guided", "published")


@dataclass(frozen=True)
class DrafterTraining:
    """How the draft model is trained.

    Args:
        num_steps: optimiser steps.
        batch_size: images per step; the guided loss runs each with and without its caption.
        accumulation: batches per optimiser step, whose gradients are averaged.
        loss: "guided" or "published".
        cfg_scale: guidance scale of the guided loss; that of decoding.
        passes: how many drafts deep the guided loss trains.
        hidden_weight: weight of the SmoothL1 loss on hidden states beside the guided cross-entropy.
        noise: width of the uniform noise on the target's hidden states, published recipe 0.2.
        matrix_learning_rate: Muon's, at its highest.
        learning_rate: AdamW's, at its highest.
        warmup: steps of linear warm-up.

    Raises:
        ValueError: unknown loss.
    """

    num_steps: int = 1000
    batch_size: int = 16
    accumulation: int = 1
    loss: str = "guided"
    cfg_scale: float = 3.0
    passes: int = 3
    hidden_weight: float = 0.1
    noise: float = 0.0
    matrix_learning_rate: float = 0.01
    learning_rate: float = 2e-3
    warmup: int = 50

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise ValueError(f"drafter.loss must be one of {', '.join(LOSSES)}, got {self.loss!r}")


def new_draft_model(target: TargetModel, seed: int) -> DraftModel:
    """A draft model that fits the target: its token embedding, and an fc layer that starts by passing the hidden state
    through.
    """
    c = target.config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        draft = DraftModel(
            DraftConfig(
                c.dim, c.num_heads, c.ffn_hidden, c.vocab_size, c.grid, c.num_text_tokens, c.norm_eps, c.rope_base
            )
        )
        for part in (draft.layer.qkv, draft.layer.gate_up, draft.from_token):
            torch.nn.init.normal_(part.weight, std=0.02)
        for part in (draft.layer.attention_out, draft.layer.down):
            torch.nn.init.normal_(part.weight, std=0.01)
    with torch.no_grad():
        draft.from_hidden.weight.copy_(torch.eye(c.dim))
        draft.from_token.bias.zero_()
        draft.token_embedding.weight.copy_(target.token_embedding.weight)
    return draft.to(target.head.weight.device)


class DrafterTrainer:
    """Trains a draft model; drive it with `run_training`.

    Args:
        draft: the draft model, changed in place.
        target: frozen target model, not prepared for decoding.
        dataset: codes and captions.
        training: recipe.
        seed: of order and noise.
    """

    def __init__(
        self, draft: DraftModel, target: TargetModel, dataset: CodeDataset, training: DrafterTraining, seed: int
    ) -> None:
        self.draft, self.target = draft.train(), target.eval().requires_grad_(False)
        self.dataset, self.training, self.seed = dataset, training, seed
        self.draft.token_embedding.requires_grad_(training.loss == "guided")
        self.optimiser = MuonAdamW(draft, training.matrix_learning_rate, training.learning_rate)

    def step(self, i: int) -> dict[str, float]:
        """One optimiser step on the images of step i."""
        t = self.training
        parts = [self._batch_loss(i * t.accumulation + j) for j in range(t.accumulation)]
        loss = torch.stack([loss for loss, _ in parts]).mean()
        norm = self.optimiser.step(loss, cosine_rate(i, t.num_steps, warmup=t.warmup, final_share=0.02))
        agreement = torch.stack([values for _, values in parts]).mean(0).tolist()
        logged = {"loss": float(loss.detach()), "gradient_norm": norm}
        return logged | {f"overlap_{depth + 1}": value for depth, value in enumerate(agreement)}

    def _batch_loss(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(loss, overlap of the two distributions at each depth of drafting) of batch i."""
        t = self.training
        indices = step_indices(len(self.dataset), t.batch_size, self.seed, i)
        device = self.target.head.weight.device
        codes, features, mask = (part.to(device) for part in self.dataset.batch(indices))
        if t.loss == "guided":
            features, mask = torch.cat([features, self.target.null_features(len(codes))]), mask.repeat(2, 1)
        tokens = codes.repeat(len(features) // len(codes), 1)
        with torch.no_grad():
            hidden = self.target(features, mask, tokens[:, :-1])
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + i)
        jitter = (torch.rand(hidden.shape, generator=generator) - 0.5).to(device)
        noisy = hidden + jitter * (t.noise * 512 / hidden.shape[1]) if t.noise else hidden
        return draft_loss(self.draft, self.target, tokens, mask, hidden, noisy, t)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return {"model": self.draft.state_dict(), "optimiser": self.optimiser.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what `state_dict` gave."""
        self.draft.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])


def draft_loss(
    draft: DraftModel,
    target: TargetModel,
    codes: torch.Tensor,
    mask: torch.Tensor,
    hidden: torch.Tensor,
    noisy_hidden: torch.Tensor,
    training: DrafterTraining,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss of a batch and the overlap sum_x min(t(x), p(x)) at each depth of drafting.

    Args:
        draft: the draft model.
        target: the frozen target.
        codes: int64, (rows, tokens); under the guided loss the second half repeats the first.
        mask: bool, (rows, num_text_tokens).
        hidden: the target's hidden states, (rows, num_text_tokens + tokens - 1, dim).
        noisy_hidden: what the draft model sees of them, same shape.
        training: recipe.

    Returns:
        (scalar loss, overlaps (passes,)).
    """
    is_guided = training.loss == "guided"
    predictions = unroll(draft, codes, mask, noisy_hidden, training.passes if is_guided else 1)
    wanted = hidden[:, target.config.num_text_tokens :]  # (rows, tokens - 1, dim): row n predicts token n + 1
    scale = training.cfg_scale if is_guided else 1.0
    target_probs = _probs(target, wanted, scale)
    losses, overlaps = [], []
    for depth, predicted in enumerate(predictions):
        log_probs = target.head(guide(predicted, scale) if scale > 1 else predicted).log_softmax(-1)
        valid = slice(depth, None)  # the first `depth` rows have no draft of that depth before them
        entropy = -(target_probs * log_probs).sum(-1)[:, valid].mean()
        regression = F.smooth_l1_loss(predicted[:, valid], wanted[:, valid])
        losses.append(entropy + training.hidden_weight * regression if is_guided else regression + 0.1 * entropy)
        overlaps.append(torch.minimum(target_probs, log_probs.detach().exp()).sum(-1)[:, valid].mean())
    return torch.stack(losses).mean(), torch.stack(overlaps)


def _probs(target: TargetModel, hidden: torch.Tensor, scale: float) -> torch.Tensor:
    with torch.no_grad():
        return target.head(guide(hidden, scale) if scale > 1 else hidden).softmax(-1)


def unroll(
    draft: DraftModel, codes: torch.Tensor, mask: torch.Tensor, hidden: torch.Tensor, passes: int
) -> list[torch.Tensor]:
    """Runs the draft model on its own predictions, as decoding does.

    In pass d every row sees the rows up to d - 1 places before it with the target's hidden states, then one row of
    each pass between, then itself: just what a draft at depth d of a chain sees.

    Args:
        draft: the model.
        codes: int64, (rows, tokens).
        mask: bool, (rows, num_text_tokens).
        hidden: target hidden states, (rows, num_text_tokens + tokens - 1, dim); the last row is not read.
        passes: how deep.

    Returns:
        Per pass the predicted hidden states, (rows, tokens - 1, dim); row n predicts token n + 1.
    """
    num_text, n = mask.shape[1] - 1, codes.shape[1] - 1
    text_mask = mask[:, :-1] if draft.config.masks_text_padding else torch.ones_like(mask[:, :-1])
    tokens = torch.cat([codes.new_zeros(len(codes), num_text), codes[:, :n]], dim=1)
    cache = _GrowingCache()
    attention = prefix_mask(text_mask, num_text + n, hidden.dtype)
    rotary = draft.rotary[: num_text + n, None, None]
    embedded = draft.embed(tokens)
    out = draft.layer(embedded + draft.from_hidden(hidden[:, :-1]), rotary, attention, cache)[:, num_text:]
    predictions = [out]
    step = torch.arange(n, device=hidden.device)
    for depth in range(1, passes):
        shifted = F.pad(out, (0, 0, 1, 0))[:, :-1]  # row n continues what the draft model predicted at row n - 1
        masks = [attention[:, :, num_text:, :num_text], _band(step, depth, None, hidden.dtype)]
        masks += [_band(step, depth - between, depth - between, hidden.dtype) for between in range(1, depth + 1)]
        rows = len(codes)
        joined = torch.cat([part.expand(rows, -1, -1, -1) for part in masks], dim=-1)
        x = embedded[:, num_text:] + draft.from_hidden(shifted)
        out = draft.layer(x, rotary[num_text:], joined, cache)
        predictions.append(out)
    return predictions


def _band(step: torch.Tensor, lowest: int, highest: int | None, dtype: torch.dtype) -> torch.Tensor:
    """Additive mask (1, 1, n, n): query row sees key rows `lowest` (and more, up to `highest`) places before it."""
    distance = step[:, None] - step
    visible = distance >= lowest
    if highest is not None:
        visible &= distance <= highest
    return torch.zeros(visible.shape, dtype=dtype, device=step.device).masked_fill(~visible, float("-inf"))[None, None]


class _GrowingCache:
    """Keys and values of all passes so far, side by side; differentiable, for training only."""

    def __init__(self) -> None:
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def append(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys.append(key)
        self.values.append(value)
        return torch.cat(self.keys, dim=1), torch.cat(self.values, dim=1)
