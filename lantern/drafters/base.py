"""The interface of all drafters, and the drafter of autoregressive decoding, which has no drafts."""

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

State = TypeVar("State")  # the data that a drafter keeps about a batch of images


class Drafter(Generic[State]):
    """The base class of all drafters, which propose a tree of drafts in every step.

    A drafter keeps its data about a batch of images in a separate state object. Each image has one row of the state's
    tensors. These tensors are changed in place and never move in memory, so that a CUDA graph can use them.

    A custom class may declare the class attributes `trees`, `parameters`, `is_sampled` and others, which are described
    in `lantern.method_tables.DraftsRow`.

    Attributes:
        tree: the static tree, or the options of the dynamic one.
        max_depth: number of drafts on the longest path. 0 if only the root is proposed. A step emits at most
            `max_depth` + 1 tokens.
        noise_streams: names of the streams of random numbers that the drafter reads, in addition to the stream
            "target".
        keeps_probs: whether proposals hold the distributions `draft_probs` even if the verifier does not need them.
            `with_draft_probs` sets it. A drafter that cannot compute these distributions ignores it.
        verifier: decides which drafts are accepted. None if the method's acceptance makes the verifier.
    """

    tree: DraftTree | DynamicTreeOptions
    max_depth: int
    noise_streams: tuple[str, ...] = ()
    keeps_probs: bool = False
    verifier: Verifier | None = None

    @classmethod
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> Drafter[State]:
        """Make the drafter of a method.

        Args:
            models: the target, and the draft model if the method needs one.
            spec: the method, with its tree and its parameters.
            sampling: temperature, filters and guidance.
        """
        raise NotImplementedError

    def with_draft_probs(self) -> Drafter[State]:
        """Return a copy of the drafter whose proposals always hold the distributions of the drafts.

        Measurements need these distributions even if the verifier does not.
        """
        other = copy(self)
        other.keeps_probs = True
        return other

    def allocate(self, num_rows: int, noise: NoiseField) -> State:
        """Make the state of a batch of images that have no prompts yet.

        By default a drafter has no state and returns None.

        Args:
            num_rows: number of images in the batch.
            noise: random numbers of the images, from which a drafter may sample drafts.
        """
        return None  # type: ignore[return-value]

    def fill(self, state: State, rows: torch.Tensor, prefill: Prefill) -> None:
        """Prepare the state for new prompts. By default nothing is done.

        Args:
            state: the state, changed in place.
            rows: indices in the batch at which the new images are generated, int64 (prompts,).
            prefill: the target's outputs for the prompts.
        """

    def propose(self, state: State, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        """Return a tree filled with drafts.

        Args:
            state: the state of the drafter.
            root: last emitted token of each image, int64 (batch, 1).
            lengths: number of emitted tokens of each image, int64 (batch,).
        """
        raise NotImplementedError

    def observe(self, state: State, outcome: Outcome, lengths: torch.Tensor) -> None:
        """Update the state with the outcome of a step. By default nothing is done.

        Args:
            state: the state, changed in place.
            outcome: result of the verification, with the target's scores and the emitted tokens.
            lengths: number of emitted tokens of each image before the step, the same as in `propose`, int64 (batch,).
        """


class NoDrafter(Drafter[None]):
    """The drafter of autoregressive decoding. Its tree consists of the root, which is not a draft."""

    max_depth = 0

    def __init__(self, device: torch.device) -> None:
        self.tree: DraftTree = static_structure([0], device)

    @classmethod
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> NoDrafter:
        """Make the drafter on the target's device, see `Drafter.make`."""
        return cls(models.target.device)

    def propose(self, state: None, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        """Return a tree that holds only the root, see `Drafter.propose`."""
        return Proposal(root, self.tree)


def best_codes(keys: torch.Tensor, k: int) -> torch.Tensor:
    """Return the k codes with the largest scores, largest first, int64 (..., k).

    -1 marks a missing code, if the filters left fewer than k codes.

    Args:
        keys: scores of the codes, (..., vocab). -inf for codes that were filtered out.
        k: number of codes to return.
    """
    if k == 1:
        return keys.argmax(-1, keepdim=True)
    best = keys.topk(k, dim=-1)
    return best.indices.masked_fill(best.values.isneginf(), -1)
