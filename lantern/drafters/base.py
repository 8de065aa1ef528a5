"""The interface of all drafters, and the one that proposes nothing."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from lantern.acceptance.base import Verifier
from lantern.decoding_state import DecodingModels
from lantern.draft_tree import StaticTree, static_structure
from lantern.methods import MethodSpec
from lantern.noise import NoiseField
from lantern.sampling import SamplingConfig
from lantern.step import Outcome, Prefill, Proposal
from lantern.tree_shapes import DynamicTreeOptions


class Drafter:
    """Fills a tree of drafts in every step. What belongs to a batch of images is in a state of its own, whose tensors
    stay where they are and are changed in place.

    A custom class may declare `trees`, `parameters`, `is_sampled` and the like as `lantern.methods.DraftsRow` has them.

    Attributes:
        tree: the static tree, or options of the dynamic one.
        max_depth: tokens that a step may emit, but one: most drafts on a path; 0 for a drafter that proposes the root
            alone.
        noise_streams: the noise that it reads, besides the target's.
        keeps_probs: whether proposals state what their drafts were sampled from, even if the verifier does not need it.
            A measurement asks for it, see `Decoder.with_draft_probs`; a drafter that cannot tell ignores it.
        verifier: decides about its drafts, unless the method's acceptance makes one.
    """

    tree: StaticTree | DynamicTreeOptions
    max_depth: int
    noise_streams: tuple[str, ...] = ()
    keeps_probs: bool = False
    verifier: ClassVar[Verifier | None] = None

    @classmethod
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> Drafter:
        """The drafter of a method."""
        raise NotImplementedError

    def allocate(self, num_rows: int, noise: NoiseField) -> Any:
        """State of a batch of `num_rows` images that have no prompts yet."""

    def fill(self, state: Any, rows: torch.Tensor, prefill: Prefill) -> None:
        """Gives the rows, int64 (prompts,), new prompts."""

    def propose(self, state: Any, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        """A filled tree behind root, int64 (batch, 1), the last of the image tokens emitted, lengths int64 (batch,)."""
        raise NotImplementedError

    def observe(self, state: Any, outcome: Outcome, lengths: torch.Tensor) -> None:
        """Learns what the target made of the proposal; lengths as `propose` had them."""


class NoDrafter(Drafter):
    """Autoregressive decoding: the root alone."""

    max_depth = 0

    def __init__(self, device: torch.device) -> None:
        self.tree = static_structure([0], device)

    @classmethod
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> NoDrafter:
        """Needs nothing of the method."""
        return cls(models.target.device)

    def propose(self, state: None, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        """The root."""
        return Proposal(root, self.tree)


def best_codes(keys: torch.Tensor, k: int) -> torch.Tensor:
    """The k codes of highest key, int64 (..., k), for keys (..., vocab); -1 where the filters left fewer."""
    if k == 1:
        return keys.argmax(-1, keepdim=True)
    best = keys.topk(k, dim=-1)
    return best.indices.masked_fill(best.values.isneginf(), -1)
