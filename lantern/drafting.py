"""What a step drafts: the interface of all drafters, and the one that proposes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from lantern.draft_tree import DraftTree, StaticTree, static_structure
from lantern.noise import NoiseField
from lantern.tree_shapes import DynamicTreeOptions

if TYPE_CHECKING:
    from lantern.verification import Outcome


@dataclass
class Cells:
    """Where the tokens of a step stand, if not behind the last token emitted; none accepts another.

    Attributes:
        places: int64, (batch, cells): image position of each token.
        drawn: int64, (batch, cells): image position that is drawn behind each; behind the image where none is.
        counts: int64, (batch,): tokens that are drawn.
        visible: bool, (batch, cells, image tokens): image positions that each sees.
    """

    places: torch.Tensor
    drawn: torch.Tensor
    counts: torch.Tensor
    visible: torch.Tensor


@dataclass
class Proposal:
    """A filled tree, or tokens of several lines side by side.

    Attributes:
        tokens: int64, (batch, nodes), root included; -1 where there is no draft: fewer codes are left by the filters
            than the node has children.
        tree: its structure.
        draft_probs: what each node's children were drawn from, (batch, inner, vocab); None unless they were sampled, or
            where a measurement asks for it.
        cells: of tokens of several lines, whose tree is a root alone; None for a tree.
    """

    tokens: torch.Tensor
    tree: DraftTree
    draft_probs: torch.Tensor | None = None
    cells: Cells | None = None


@dataclass
class Prefill:
    """What a drafter may want to know of new prompts.

    Attributes:
        hidden: the target's hidden states of their captions, (captions, prompts, num_text_tokens, dim).
        mask: bool, (captions, prompts, num_text_tokens), True where a caption token is.
        first: int64, (prompts, 1): image token 0, predicted by the last caption row.
        ids: of the prompts' tokens, int64, the shape of the mask; None where prompts are features.
    """

    hidden: torch.Tensor
    mask: torch.Tensor
    first: torch.Tensor
    ids: torch.Tensor | None = None


class Drafter(Protocol):
    """Fills a tree of drafts in every step. What belongs to a batch of images is in a state of its own, whose tensors
    stay where they are and are changed in place.

    Attributes:
        tree: the static tree, or options of the dynamic one.
        max_depth: tokens that a step may emit, but one: most drafts on a path; 0 for a drafter that proposes the root
            alone.
        noise_streams: the noise that it reads, besides the target's.
    """

    tree: StaticTree | DynamicTreeOptions
    max_depth: int
    noise_streams: tuple[str, ...]

    def allocate(self, num_rows: int, noise: NoiseField) -> Any:
        """State of a batch of `num_rows` images that have no prompts yet."""

    def fill(self, state: Any, rows: torch.Tensor, prefill: Prefill) -> None:
        """Gives the rows, int64 (prompts,), new prompts."""

    def propose(self, state: Any, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        """A filled tree behind root, int64 (batch, 1), the last of the image tokens emitted, lengths int64 (batch,)."""

    def observe(self, state: Any, outcome: Outcome, lengths: torch.Tensor) -> None:
        """Learns what the target made of the proposal; lengths as `propose` had them."""


class NoDrafter:
    """Autoregressive decoding: the root alone."""

    max_depth, noise_streams = 0, ()

    def __init__(self, device: torch.device) -> None:
        self.tree = static_structure([0], device)

    def allocate(self, num_rows: int, noise: NoiseField) -> None:
        """There is nothing to keep."""

    def fill(self, state: None, rows: torch.Tensor, prefill: Prefill) -> None:
        """Does nothing."""

    def propose(self, state: None, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        """The root."""
        return Proposal(root, self.tree)

    def observe(self, state: None, outcome: Outcome, lengths: torch.Tensor) -> None:
        """Does nothing."""


def best_codes(keys: torch.Tensor, k: int) -> torch.Tensor:
    """The k codes of highest key, int64 (..., k), for keys (..., vocab); -1 where the filters left fewer."""
    if k == 1:
        return keys.argmax(-1, keepdim=True)
    best = keys.topk(k, dim=-1)
    return best.indices.masked_fill(best.values.isneginf(), -1)
