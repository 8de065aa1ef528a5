"""The data of one decoding step: the drafts, the target's scores of them, and the outcome of verification.

A step for the sentence "what is your name" and a tree of three drafts after the root "what":

    what ─┬─ is ─── your        proposal: tokens [what, is, are, your], parents [0, 0, 0, 1]
          └─ are                scores:   the target's distribution after each of the four nodes
                                outcome:  path [what, is, your], two accepted drafts, then a token of the target: "name"

Shapes: batch = images, nodes = nodes of the tree, inner = nodes that may have children, m = largest number of children
of a node, branches = 1, or 2 with classifier-free guidance.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from lantern.draft_tree import DraftTree
from lantern.noise import NoiseField
from lantern.sampling import SamplingConfig, filter_logits


@dataclass
class Prefill:
    """The target's outputs for new prompts, from which a drafter starts.

    Attributes:
        hidden: hidden states at the prompt tokens, (branches, prompts, num_text_tokens, dim).
        mask: bool (branches, prompts, num_text_tokens), False for padding.
        first: first image token of each prompt, int64 (prompts, 1).
        ids: token ids of the prompts, int64, shaped like `mask`. None if prompts are caption features, or have source
            pictures.
        source: for each image token, the code of the source picture at the same place, int64 (prompts, image tokens).
            None if the prompts have no source pictures.
    """

    hidden: torch.Tensor
    mask: torch.Tensor
    first: torch.Tensor
    ids: torch.Tensor | None = None
    source: torch.Tensor | None = None


@dataclass
class Proposal:
    """A tree filled with drafts.

    Attributes:
        tokens: token of each node, int64 (batch, nodes). -1 marks a missing draft, if the filters left fewer codes than
            the node has children.
        draft_probs: distributions from which the children of inner nodes were sampled, (batch, inner, vocab). None
            unless the verifier or a measurement needs them. All 0 at a node whose children were not sampled.
        is_finite: whether all logits of a trained model that drafted the tree were finite, bool (batch,). None if no
            trained model did.
    """

    tokens: torch.Tensor
    tree: DraftTree
    draft_probs: torch.Tensor | None = None
    is_finite: torch.Tensor | None = None

    @property
    def children(self) -> torch.Tensor:
        """Tokens of the children of every inner node, int64 (batch, inner, m). -1 marks a missing draft."""
        children = self.tree.children.expand(len(self.tokens), -1, -1)  # nodes, of which -1 is none
        tokens = self.tokens.gather(1, children.clamp(min=0).flatten(1)).view(children.shape)
        return tokens.masked_fill(children < 0, -1)


@dataclass
class Scores:
    """The target's logits at some nodes of a draft tree, from which `weights` and `keys` are computed when first read.

    Attributes:
        hidden: hidden states of the target, (branches, batch, nodes, dim). None for scores from `at`.
        logits: after guidance, before temperature and filters, float32 (batch, nodes, vocab).
        positions: image position that each node predicts, int64 (batch, nodes).
    """

    hidden: torch.Tensor | None
    logits: torch.Tensor
    positions: torch.Tensor
    noise: NoiseField
    sampling: SamplingConfig
    # Kept once computed. functools.cached_property holds a lock on Python 3.11, which torch.compile cannot trace.
    _weights: torch.Tensor | None = field(default=None, init=False)
    _keys: torch.Tensor | None = field(default=None, init=False)

    @property
    def weights(self) -> torch.Tensor:
        """Unnormalised log-probabilities after temperature and filters, -inf for codes that were filtered out.

        In greedy decoding nothing is filtered, and they are the logits.
        """
        if self.sampling.is_greedy:
            return self.logits
        if self._weights is None:
            self._weights = filter_logits(self.logits, self.sampling)
        return self._weights

    @property
    def keys(self) -> torch.Tensor:
        """`weights` plus the target's Gumbel noise, of which there is none in greedy decoding."""
        if self.sampling.is_greedy:
            return self.logits
        if self._keys is None:
            # Gumbel-max: the argmax of weights plus Gumbel noise is a sample of softmax(weights).
            self._keys = self.weights + self.noise.gumbel("target", self.positions)
        return self._keys

    def at(self, nodes: torch.Tensor) -> Scores:
        """Return the scores of some nodes, int64 (batch, n)."""
        positions = self.positions.gather(1, nodes)
        return Scores(None, pick_rows(self.logits, nodes), positions, self.noise, self.sampling)


@dataclass
class Outcome:
    """The result of verifying the drafts of one step.

    Attributes:
        is_accepted: whether a node was accepted as a child of its parent, bool (batch, nodes). Also False for nodes
            that were not verified because no accepted path leads to them. The root's entry has no meaning.
        path: accepted nodes, the root first, int64 (batch, max_depth + 1). Padded with the last accepted node.
        num_accepted: number of accepted drafts, int64 (batch,).
        emitted: accepted drafts, then the token that follows them, int64 (batch, max_depth + 1). Later entries have no
            meaning.
        is_substituted: whether a token differs from the target's sample, bool, shaped like `emitted`. False if the
            method takes no samples of the target.
        is_finite: whether the target's logits for all emitted tokens were finite, bool (batch,).
    """

    proposal: Proposal
    scores: Scores
    is_accepted: torch.Tensor
    path: torch.Tensor
    num_accepted: torch.Tensor
    emitted: torch.Tensor
    is_substituted: torch.Tensor
    is_finite: torch.Tensor

    @property
    def positions(self) -> torch.Tensor:
        """Image position that each node predicts, int64 (batch, nodes)."""
        return self.scores.positions


def pick_rows(values: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
    """Select nodes, int64 (batch, n), from values (batch, nodes, width). The result is (batch, n, width)."""
    batch, num_nodes, _ = values.shape
    # Whole rows of a flat tensor: `gather` would need an index as wide as the values.
    rows = nodes + torch.arange(batch, device=nodes.device)[:, None] * num_nodes
    return values.reshape(batch * num_nodes, -1).index_select(0, rows.flatten()).view(*nodes.shape, -1)
