"""The data that goes into decoding, that changes in it, and that comes out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import nn

from lantern.kv_cache import KVCache
from lantern.models.draft import DraftModel
from lantern.models.target import Target
from lantern.noise import NoiseField

Part = TypeVar("Part", bound=nn.Module)
TARGET_FAULT, FINE, DRAFT_FAULT = 0, 1, 2  # in `DecodingState.step_log`


@dataclass
class DecodingModels:
    """Models that are prepared for decoding. What the method does not need is None or missing."""

    target: Target
    draft: DraftModel | None = None
    nearest_codes: torch.Tensor | None = None  # (vocab, columns), nearest first
    parts: dict[str, nn.Module] = field(default_factory=dict)  # trained parts, by the names in `DraftsRow.trained`

    def require_draft(self, method: str) -> DraftModel:
        """Return `draft`, or raise a ValueError that names the method, which needs it."""
        if self.draft is None:
            raise ValueError(f"method {method} needs a draft model; got none")
        return self.draft

    def require(self, name: str, kind: type[Part], method: str) -> Part:
        """Return the trained part if it is of the class `kind`, or raise a ValueError that names the method."""
        part = self.parts.get(name)
        if not isinstance(part, kind):
            # Any module can be a part. Only some have texts for messages.
            needed, found = (getattr(cls, "label", cls.__name__) for cls in (kind, type(part)))
            remedy = getattr(kind, "remedy", f"pass one as {name} in DecodingModels.parts")
            raise ValueError(f"method {method} needs {needed}, got {'none' if part is None else found}; {remedy}")
        return part


@dataclass
class Generation:
    """The images of a batch, and how they were decoded.

    The prefill counts as a forward pass of the target, but not as a step.
    """

    codes: torch.Tensor  # (batch, tokens)
    target_forwards: torch.Tensor  # (batch,)
    step_lengths: torch.Tensor  # (batch, tokens), tokens per forward pass, the prefill first, then zeros
    accepted_lengths: torch.Tensor  # (batch, steps), accepted drafts, also past the end; -1 if the image was complete
    accepted_nodes: torch.Tensor  # (batch, steps), the deepest accepted node; -1 if the image was complete
    is_substituted: torch.Tensor  # bool (batch, tokens)
    margins: torch.Tensor  # (batch, tokens), in nats; (batch, 0) unless margins were recorded


@dataclass
class DecodingState:
    """A batch of images while it is decoded.

    Steps and new prompts change the tensors in place. A batch row without a prompt counts as complete. The token
    buffers are longer than an image, since the last step may emit tokens past its end.
    """

    noise: NoiseField
    cache: KVCache
    tokens: torch.Tensor  # (batch, tokens + max_depth + 1), the emitted tokens
    lengths: torch.Tensor  # (batch,), number of tokens emitted so far, at most that of an image
    is_substituted: torch.Tensor  # like `tokens`
    margins: torch.Tensor | None  # like `tokens`
    num_steps: torch.Tensor  # (batch,)
    # Per step the number of accepted drafts, the deepest accepted node, and FINE, or which model's logits were not
    # finite: TARGET_FAULT or DRAFT_FAULT. Entries from `num_steps` on have no meaning.
    step_log: torch.Tensor  # (batch, tokens, 3)
    is_first_finite: torch.Tensor  # (batch,), whether the target's logits for the first token were finite
    drafter_state: object  # from `Drafter.allocate`
    # Graphs of a step on these tensors, by the number of slots that attention reads. Empty unless a step was captured.
    graphs: dict[int, torch.cuda.CUDAGraph] = field(default_factory=dict)

    def check_finite(self) -> None:
        """Raise a FloatingPointError that names model, prompt and step if logits of any step were not finite."""
        is_step = torch.arange(self.step_log.shape[1], device=self.lengths.device) < self.num_steps[:, None]
        found = self.step_log[..., 2].masked_fill(~is_step, FINE)
        # The prefill has no entry. Its fault is reported as one of step 0, also if no step was run.
        found[:, 0].masked_fill_(~self.is_first_finite, TARGET_FAULT)
        if bool((found == FINE).all()):
            return
        # A target's fault comes first, since it makes the drafts of the next step wrong as well.
        is_target = bool((found == TARGET_FAULT).any())
        is_bad = found == (TARGET_FAULT if is_target else DRAFT_FAULT)
        row, step = is_bad.nonzero().tolist()[0]  # the first one, in the order of rows
        model = "the target" if is_target else "the draft model or the heads"
        raise FloatingPointError(
            f"logits of prompt {self.noise.prompt_ids[row]} are not finite at step {step}, from {model} "
            f"({int(is_bad.any(1).sum())} prompts of the batch); check its weights, or use float32"
        )

    def collect(self, rows: Sequence[int]) -> Generation:
        """Copy the images of complete batch rows out of the state, which later steps change."""
        index = torch.tensor(list(rows), device=self.lengths.device)
        num_tokens = self.step_log.shape[1]
        num_steps = self.num_steps[index]
        log = self.step_log[index, : int(num_steps.max())]
        is_past_end = torch.arange(log.shape[1], device=self.lengths.device) >= num_steps[:, None]
        log = log.masked_fill(is_past_end[..., None], -1)
        accepted = log[..., 0]
        nodes = log[..., 1]
        # Tokens after each forward pass: 1 after the prefill, then accepted drafts and a bonus token. Tokens past the
        # end of the image are cut off. A step of a complete image (-1) adds 0.
        lengths = F.pad(accepted + 1, (1, 0), value=1).cumsum(1).clamp(max=num_tokens)
        # And back from sums to numbers per forward pass.
        lengths = lengths.diff(dim=1, prepend=torch.zeros_like(lengths[:, :1]))
        return Generation(
            codes=self.tokens[index, :num_tokens],
            target_forwards=(lengths > 0).sum(1),
            step_lengths=F.pad(lengths, (0, num_tokens - lengths.shape[1])),
            accepted_lengths=accepted,
            accepted_nodes=nodes,
            is_substituted=self.is_substituted[index, :num_tokens],
            margins=self.margins[index, :num_tokens] if self.margins is not None else torch.zeros(len(index), 0),
        )
