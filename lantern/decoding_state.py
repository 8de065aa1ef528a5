"""What decoding keeps of a batch of images, and what it hands over when they are complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from lantern.kv_cache import KVCache
from lantern.noise import NoiseField


@dataclass
class Generation:
    """Images of one batch.

    Attributes:
        codes: int64, (batch, tokens).
        target_forwards: int64, (batch,): prefill included.
        step_lengths: int64, (batch, tokens): tokens emitted by each target forward, zero-padded; rows sum to `tokens`.
        accepted_lengths: int64, (batch, steps): accepted drafts of each step after the prefill, the end of the image
            notwithstanding; -1 where an image was already complete.
        accepted_nodes: int64, (batch, steps): the deepest accepted node of each of these steps, 0 for the root; -1 as
            above.
        is_substituted: bool, (batch, tokens): emitted token differs from the one that the target drew at its node.
        margins: float32, (batch, tokens), or (batch, 0) unless asked for: gap of the two best perturbed log-weights,
            nats.
    """

    codes: torch.Tensor
    target_forwards: torch.Tensor
    step_lengths: torch.Tensor
    accepted_lengths: torch.Tensor
    accepted_nodes: torch.Tensor
    is_substituted: torch.Tensor
    margins: torch.Tensor


@dataclass
class DecodingState:
    """Everything that lives as long as a batch of images; a decoder may work on several in turn.

    Its tensors stay where they are: steps and new prompts change them in place. Buffers are longer than an image, so
    that the last step may overshoot.

    Attributes:
        noise: of the images.
        cache: the target's.
        tokens: int64, (batch, tokens + overshoot).
        lengths: int64, (batch,): tokens emitted; stops at the size of the image, where rows without a prompt stand.
        is_substituted: bool, like tokens.
        margins: float32, like tokens; None unless asked for.
        num_steps: int64, (batch,): steps that the image took.
        step_log: int64, (batch, tokens, 3): of each step the accepted drafts, the deepest accepted node, and whether
            the logits behind it were finite; entries behind `num_steps` have no meaning.
        drafter: the drafter's own.
        graph: of a step on these tensors, see `StepRunner`; None unless one was captured.
    """

    noise: NoiseField
    cache: KVCache
    tokens: torch.Tensor
    lengths: torch.Tensor
    is_substituted: torch.Tensor
    margins: torch.Tensor | None
    num_steps: torch.Tensor
    step_log: torch.Tensor
    drafter: Any
    graph: torch.cuda.CUDAGraph | None = None

    def check_finite(self) -> None:
        """Makes sure that the logits of all steps were finite.

        Raises:
            FloatingPointError: they were not; names the prompt and the step.
        """
        is_step = torch.arange(self.step_log.shape[1], device=self.lengths.device) < self.num_steps[:, None]
        is_bad = (self.step_log[..., 2] == 0) & is_step
        if is_bad.any():
            row, step = is_bad.nonzero().tolist()[0]
            raise FloatingPointError(
                f"logits of prompt {self.noise.prompt_ids[row]} are not finite at step {step} "
                f"({int(is_bad.any(1).sum())} prompts of the batch)"
            )

    def collect(self, rows: Sequence[int]) -> Generation:
        """Images of complete rows."""
        index, n = torch.tensor(list(rows), device=self.lengths.device), self.step_log.shape[1]
        num_steps = self.num_steps[index]
        log = self.step_log[index, : int(num_steps.max())]
        log = log.masked_fill(
            (torch.arange(log.shape[1], device=self.lengths.device) >= num_steps[:, None])[..., None], -1
        )
        accepted, nodes = log[..., 0], log[..., 1]
        lengths = F.pad(accepted + 1, (1, 0), value=1).cumsum(1).clamp(max=n)
        lengths = lengths.diff(dim=1, prepend=torch.zeros_like(lengths[:, :1]))
        return Generation(
            codes=self.tokens[index, :n],
            target_forwards=(lengths > 0).sum(1),
            step_lengths=F.pad(lengths, (0, n - lengths.shape[1])),
            accepted_lengths=accepted,
            accepted_nodes=nodes,
            is_substituted=self.is_substituted[index, :n],
            margins=self.margins[index, :n] if self.margins is not None else torch.zeros(len(index), 0),
        )
