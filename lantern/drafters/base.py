"""The interface of all drafters, and the drafter of autoregressive decoding."""

from __future__ import annotations

from copy import copy
from typing import Generic, TypeVar

import torch

from lantern.acceptance.base import Verifier
from lantern.decoding_state import DecodingModels
from lantern.draft_tree import DraftTree, static_structure
from lantern.methods import MethodSpec
from lantern.noise import NoiseField
from lantern.sampling import SamplingConfig
from lantern.step import Outcome, Prefill, Proposal
from lantern.tree_shapes import DynamicTreeOptions

State = TypeVar("State")  # the data that a drafter keeps of a batch of images


class Drafter(Generic[State]):
    """The base class of all drafters, which fill a tree of drafts in every step.

    The data of a batch of images is in a separate state, whose tensors are changed in place and keep their addresses.

    A custom class may declare `trees`, `parameters`, `is_sampled` and so on, which are described in
    `lantern.methods.DraftsRow`.

    Attributes:
        tree: the static tree, or the options of the dynamic one.
        max_depth: length of the longest path of drafts, 0 if only the root is proposed. A step emits at most one token
            more.
        noise_streams: names of the noise that the drafter reads, besides the target's.
        keeps_probs: whether proposals hold `draft_probs` even if the verifier does not need them. `with_draft_probs`
            sets it. A drafter that does not know the distributions ignores it.
        verifier: decides which drafts are accepted. None for the verifier of the method's acceptance.
    """

    tree: DraftTree | DynamicTreeOptions
    max_depth: int
    noise_streams: tuple[str, ...] = ()
    keeps_probs: bool = False
    verifier: Verifier | None = None

    @classmethod
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> Drafter[State]:
        """Make the drafter of a method."""
        raise NotImplementedError

    def with_draft_probs(self) -> Drafter[State]:
        """Return a copy whose proposals hold the distributions of the drafts, for a measurement."""
        other = copy(self)
        other.keeps_probs = True
        return other

    def allocate(self, num_rows: int, noise: NoiseField) -> State:
        """Make the state of `num_rows` images that have no prompts yet.

        A drafter without a state returns None.
        """
        return None  # type: ignore[return-value]

    def fill(self, state: State, rows: torch.Tensor, prefill: Prefill) -> None:
        """Prepare the state for new prompts.

        Args:
            state: the state, changed in place.
            rows: batch rows of the prompts, int64 (prompts,).
            prefill: the target's outputs for the prompts.
        """

    def propose(self, state: State, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        """Return a tree filled with drafts.

        Args:
            state: the state.
            root: last emitted token of each image, int64 (batch, 1).
            lengths: number of emitted tokens of each image, int64 (batch,).
        """
        raise NotImplementedError

    def observe(self, state: State, outcome: Outcome, lengths: torch.Tensor) -> None:
        """Update the state with the outcome of a step.

        Args:
            state: the state, changed in place.
            outcome: the target's decisions about the proposal.
            lengths: number of tokens that were emitted before the step, the same as in `propose`.
        """


class NoDrafter(Drafter[None]):
    """The drafter of autoregressive decoding, which proposes only the root."""

    max_depth = 0

    def __init__(self, device: torch.device) -> None:
        self.tree: DraftTree = static_structure([0], device)

    @classmethod
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> NoDrafter:
        """Make the drafter on the target's device."""
        return cls(models.target.device)

    def propose(self, state: None, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        """Return the root."""
        return Proposal(root, self.tree)


def best_codes(keys: torch.Tensor, k: int) -> torch.Tensor:
    """Return the k codes with the largest keys, int64 (..., k).

    -1 marks a missing code, if the filters left fewer than k.

    Args:
        keys: (..., vocab), -inf for codes that were filtered out.
        k: number of codes.
    """
    if k == 1:
        return keys.argmax(-1, keepdim=True)
    best = keys.topk(k, dim=-1)
    return best.indices.masked_fill(best.values.isneginf(), -1)
