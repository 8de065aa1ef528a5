"""The interface of all drafters, and the drafter of autoregressive decoding."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Generic, TypeVar

import torch
from typing_extensions import override

from lantern.acceptance.base import Verifier
from lantern.draft_tree import DraftTree, static_structure
from lantern.methods import MethodSpec
from lantern.noise import NoiseField, Stream
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels
from lantern.step import Outcome, Prefill, Proposal
from lantern.tree_shapes import DynamicTreeOptions

State = TypeVar("State")  # the data that a drafter keeps about a batch of images


class Drafter(Generic[State]):
    """The base class of all drafters. Each step calls `propose`, then `observe`, and new prompts call `fill` before.

    A drafter keeps its data about a batch of images in a separate state object, in which each image has one row. Steps
    change its tensors in place, since a CUDA graph holds their addresses.

    A custom class may declare the class attributes `trees`, `parameters`, `is_sampled` and others of
    `lantern.registry.DraftsRow`.

    Attributes:
        tree: the static tree, or the options from which a dynamic tree is built in each step.
        max_depth: number of drafts on the longest path of the tree. A step emits at most `max_depth` + 1 tokens.
        noise_streams: streams from which drafts are sampled, without `TARGET`.
        keeps_probs: set by `with_draft_probs`. A drafter that cannot compute the distributions ignores it.
        verifier: for drafts that only their own kind of verifier can test. None if the method's acceptance determines
            it.
    """

    tree: DraftTree | DynamicTreeOptions
    max_depth: int
    noise_streams: tuple[Stream, ...] = ()
    keeps_probs: bool = False
    verifier: Verifier | None = None

    @classmethod
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> Drafter[State]:
        """Make the drafter of a method.

        Args:
            models: the target, and the draft model and the trained parts that the class declares.
            spec: kind of drafts, tree and parameters.
            sampling: the target's temperature, filters and guidance.
        """
        raise NotImplementedError

    def with_draft_probs(self) -> Drafter[State]:
        """Return a copy whose proposals hold `draft_probs` even if no verifier needs them, to measure TV."""
        other = copy(self)
        other.keeps_probs = True
        return other

    def allocate(self, num_rows: int, noise: NoiseField) -> State:
        """Make the state for a batch of `num_rows` images that have no prompts yet. By default it is None.

        Args:
            noise: kept by drafters that sample. It is filled with the images' numbers later, in place.
        """
        return None  # type: ignore[return-value]

    def fill(self, state: State, rows: torch.Tensor, prefill: Prefill) -> None:
        """Prepare the state for new prompts, in place. By default nothing is done.

        Args:
            rows: rows of the batch that the new images take, int64 (prompts,).
        """

    def propose(self, state: State, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        """Return a draft tree for the next step.

        Args:
            root: last emitted token of each image, int64 (batch, 1).
            lengths: number of emitted tokens of each image, int64 (batch,), and so the position of the first draft. A
                complete image keeps its last number, and its drafts are dropped.
        """
        raise NotImplementedError

    def observe(self, state: State, outcome: Outcome, lengths: torch.Tensor) -> None:
        """Update the state in place after the drafts of a step have been verified. By default nothing is done.

        Args:
            lengths: as in `propose`, without the tokens that the step has emitted.
        """


class NoDrafter(Drafter[None]):
    """The drafter without drafts: its tree has only a root."""

    max_depth = 0

    def __init__(self, device: torch.device) -> None:
        self.tree: DraftTree = static_structure([0], device)  # the root, its own parent

    @classmethod
    @override
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> NoDrafter:
        return cls(models.target.device)

    @override
    def propose(self, state: None, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        return Proposal(root, self.tree)


def are_finite(logits: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return whether a model's logits of all its passes, each (batch, nodes, vocab), are finite, bool (batch,)."""
    # Only the largest logit of a node counts, as forbidden tokens have -inf. It is nan or +inf if any logit is.
    return torch.cat([part.amax(-1) for part in logits], dim=1).isfinite().all(1)


def best_codes(keys: torch.Tensor, k: int) -> torch.Tensor:
    """Return the k codes with the largest keys, largest first, int64 (..., k).

    -1 marks a missing code, if the filters left fewer than k codes.

    Args:
        keys: log-probabilities, with or without noise, (..., vocab). -inf for codes that were filtered out.
    """
    # One code is always left, and argmax is faster than topk.
    if k == 1:
        return keys.argmax(-1, keepdim=True)
    best = keys.topk(k, dim=-1)
    return best.indices.masked_fill(best.values.isneginf(), -1)
