"""The interface of all drafters, and the drafter of autoregressive decoding, which has no drafts."""

from __future__ import annotations

from collections.abc import Sequence
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
        tree: the static tree, or the options from which a dynamic tree is built in each step.
        max_depth: number of drafts on the longest path of the tree. The root, which is the last emitted token, is no
            draft and does not count. A step emits at most `max_depth` + 1 tokens.
        noise_streams: names of the streams of random numbers from which drafts are sampled, see `lantern.noise`. The
            stream "target", with which the target's tokens are sampled, is not listed.
        keeps_probs: whether proposals hold the drafts' distributions, `draft_probs`, even if the verifier does not need
            them. `with_draft_probs` sets it. A drafter that cannot compute these distributions ignores it.
        verifier: decides which drafts are accepted, for drafters that work only with a verifier of their kind. None if
            the drafts can be verified by any acceptance that the method names.
    """

    tree: DraftTree | DynamicTreeOptions
    max_depth: int
    noise_streams: tuple[str, ...] = ()
    keeps_probs: bool = False
    verifier: Verifier | None = None

    @classmethod
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> Drafter[State]:
        """Make the drafter of a decoding method.

        Args:
            models: the target, and the draft model or the heads if the method needs them.
            spec: the method: its kind of drafts, its tree and its parameters.
            sampling: temperature, top-k and top-p filters, and guidance.
        """
        raise NotImplementedError

    def with_draft_probs(self) -> Drafter[State]:
        """Return a copy of the drafter whose proposals always hold the distributions of the drafts.

        Measurements of total variation need these distributions, even if the verifier does not.
        """
        other = copy(self)
        other.keeps_probs = True
        return other

    def allocate(self, num_rows: int, noise: NoiseField) -> State:
        """Make the state object for a batch of images that have no prompts yet.

        By default a drafter keeps no data between steps, and its state is None.

        Args:
            num_rows: number of images in the batch.
            noise: random numbers of the images, from which a drafter may sample drafts.
        """
        return None  # type: ignore[return-value]

    def fill(self, state: State, rows: torch.Tensor, prefill: Prefill) -> None:
        """Prepare the drafter's state for new prompts. By default nothing is done.

        Args:
            state: the state, changed in place.
            rows: indices in the batch at which the new images are generated, int64 (prompts,).
            prefill: the target's outputs for the prompts.
        """

    def propose(self, state: State, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        """Return a draft tree for the next step: the root, and drafts of the tokens after it.

        Args:
            state: the state of the drafter.
            root: last emitted token of each image, int64 (batch, 1).
            lengths: number of emitted tokens of each image, int64 (batch,).
        """
        raise NotImplementedError

    def observe(self, state: State, outcome: Outcome, lengths: torch.Tensor) -> None:
        """Update the drafter's state after the drafts of a step have been verified. By default nothing is done.

        Args:
            state: the state, changed in place.
            outcome: result of the verification, with the target's scores and the emitted tokens.
            lengths: number of emitted tokens of each image before the step, int64 (batch,).
        """


class NoDrafter(Drafter[None]):
    """The drafter of autoregressive decoding. Its tree consists of the last emitted token, without any drafts."""

    max_depth = 0

    def __init__(self, device: torch.device) -> None:
        self.tree: DraftTree = static_structure([0], device)

    @classmethod
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> NoDrafter:
        """Make the drafter, whose tree is on the target's device, see `Drafter.make`."""
        return cls(models.target.device)

    def propose(self, state: None, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        """Return a tree that holds only the last emitted token, see `Drafter.propose`."""
        return Proposal(root, self.tree)


def are_finite(logits: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return whether a draft model's logits of each image are finite, bool (batch,).

    Forbidden tokens have -inf, so only the largest logit of a node is looked at.

    Args:
        logits: logits of several passes, each (batch, nodes, vocab).
    """
    return torch.cat([part.amax(-1) for part in logits], dim=1).isfinite().all(1)


def best_codes(keys: torch.Tensor, k: int) -> torch.Tensor:
    """Return the k codes with the largest keys, largest first, int64 (..., k).

    -1 marks a missing code, if top-k or top-p filtering left fewer than k codes.

    Args:
        keys: key of each code, which is its log-probability, with or without noise, (..., vocab). -inf for codes that
            were filtered out.
        k: number of codes to return.
    """
    if k == 1:
        return keys.argmax(-1, keepdim=True)
    best = keys.topk(k, dim=-1)
    return best.indices.masked_fill(best.values.isneginf(), -1)
