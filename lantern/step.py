"""What passes through a step: a drafter's proposal, the target's scores of it, and what verification makes of it.

A step in pictures, for the sentence "what is your name" and a tree of three drafts behind the root "what":

    what ─┬─ is ─── your        proposal: tokens [what, is, are, your], parents [0, 0, 0, 1]
          └─ are                scores:   the target's distribution behind each of the four nodes
                                outcome:  path [what, is, your], two drafts accepted, then a token of the target: "name"

Shapes: inner = nodes that may have children, m = most children of one node.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from lantern.draft_tree import DraftTree
from lantern.noise import NoiseField
from lantern.sampling import SamplingConfig, filter_logits


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


@dataclass
class Proposal:
    """A filled tree.

    Attributes:
        tokens: int64, (batch, nodes), root included; -1 where there is no draft: the filters left fewer codes than the
            node has children.
        tree: its structure.
        draft_probs: distributions that the children of inner nodes were sampled from, (batch, inner, vocab). None
            unless the verifier or a measurement needs them. All 0 at a node whose children were not sampled.
    """

    tokens: torch.Tensor
    tree: DraftTree
    draft_probs: torch.Tensor | None = None

    @property
    def children(self) -> torch.Tensor:
        """Drafted tokens of every inner node's children, int64 (batch, inner, m), -1 where there is none."""
        children = self.tree.children.expand(len(self.tokens), -1, -1)
        tokens = self.tokens.gather(1, children.clamp(min=0).flatten(1)).view(children.shape)
        return tokens.masked_fill(children < 0, -1)


@dataclass
class Scores:
    """What the target makes of some nodes; filters and noise are applied where they are first read.

    Attributes:
        hidden: (captions, batch, nodes, dim): the target's hidden states; None for nodes picked by `at`.
        logits: raw guided logits, float32 (batch, nodes, vocab).
        positions: int64, (batch, nodes): image position that each node predicts.
        noise: of the images.
        sampling: temperature and filters.
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
        """Log-weights after temperature and filters, like logits, -inf where filtered; the logits where greedy."""
        if self.sampling.is_greedy:
            return self.logits
        if self._weights is None:
            self._weights = filter_logits(self.logits, self.sampling)
        return self._weights

    @property
    def keys(self) -> torch.Tensor:
        """Weights with the target's noise, whose largest is the target's token; the logits where greedy."""
        if self.sampling.is_greedy:
            return self.logits
        if self._keys is None:
            self._keys = self.weights + self.noise.gumbel("target", self.positions)
        return self._keys

    def at(self, nodes: torch.Tensor) -> Scores:
        """Of these nodes alone, int64 (batch, n)."""
        positions = self.positions.gather(1, nodes)
        return Scores(None, pick_rows(self.logits, nodes), positions, self.noise, self.sampling)


@dataclass
class Outcome:
    """What verification makes of a step.

    Attributes:
        proposal: what was verified.
        scores: by what.
        is_accepted: bool, (batch, nodes): accepted by its parent. False for nodes that were not verified, since no
            accepted path leads to them.
        path: int64, (batch, max_depth + 1): the nodes that are taken, root first, padded with the last.
        num_accepted: int64, (batch,): drafts on the path.
        emitted: int64, (batch, max_depth + 1): the accepted drafts, then the token behind them; the rest has no
            meaning.
        is_substituted: bool, like emitted: differs from the target's own token; False where the method draws none.
        is_finite: bool, (batch,): whether the scores behind the last emitted token were finite.
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
    """Values (batch, nodes, width) of some nodes, int64 (batch, n): (batch, n, width)."""
    batch, num_nodes, _ = values.shape
    rows = nodes + torch.arange(batch, device=nodes.device)[:, None] * num_nodes
    return values.reshape(batch * num_nodes, -1).index_select(0, rows.flatten()).view(*nodes.shape, -1)
