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
from lantern.noise import TARGET, NoiseField
from lantern.sampling import SamplingConfig, filter_logits


@dataclass
class Prefill:
    """What a drafter learns about new prompts."""

    hidden: torch.Tensor  # hidden states at the prompt tokens, (branches, prompts, num_text_tokens, dim)
    mask: torch.Tensor  # bool (branches, prompts, num_text_tokens), False for padding
    first: torch.Tensor  # first image token, (prompts, 1)
    ids: torch.Tensor | None = None  # like `mask`; None if prompts are caption features, or have source pictures


@dataclass
class Proposal:
    """A tree filled with drafts."""

    tokens: torch.Tensor  # (batch, nodes); -1 marks a missing draft, if the filters left fewer codes than children
    tree: DraftTree
    # Distributions from which drafts were sampled: one per inner node, of its children, all 0 if they were not sampled.
    # Or one per node but the root, (batch, nodes - 1, vocab), if only the drafter's own verifier reads them, as that of
    # PathRelax. None unless the verifier or a measurement needs them.
    draft_probs: torch.Tensor | None = None  # (batch, inner, vocab)
    is_finite: torch.Tensor | None = None  # (batch,), whether the drafting model's logits are finite; None without one

    @property
    def children(self) -> torch.Tensor:
        """Tokens of the children, int64 (batch, inner, m). -1 marks a missing draft."""
        children = self.tree.children.expand(len(self.tokens), -1, -1)  # nodes, of which -1 is none
        tokens = self.tokens.gather(1, children.clamp(min=0).flatten(1)).view(children.shape)
        return tokens.masked_fill(children < 0, -1)


@dataclass
class Scores:
    """The target's logits at some nodes of a draft tree. `weights` and `keys` are computed when they are first read."""

    hidden: torch.Tensor | None  # (branches, batch, nodes, dim); None for scores from `at`
    logits: torch.Tensor  # float32 (batch, nodes, vocab), after guidance, before temperature and filters
    positions: torch.Tensor  # (batch, nodes), the image position that each node predicts
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
            self._keys = self.weights + self.noise.gumbel(TARGET, self.positions)
        return self._keys

    def at(self, nodes: torch.Tensor) -> Scores:
        """Return the scores of nodes, int64 (batch, n), without `hidden`. Its filters and noise run on these alone."""
        positions = self.positions.gather(1, nodes)
        return Scores(None, pick_rows(self.logits, nodes), positions, self.noise, self.sampling)


@dataclass
class Outcome:
    """What the verifier decided."""

    proposal: Proposal
    scores: Scores
    # Whether a node was accepted as a child of its parent. Also False for nodes that were not verified because no
    # accepted path leads to them. The root's entry has no meaning.
    is_accepted: torch.Tensor  # (batch, nodes)
    path: torch.Tensor  # (batch, max_depth + 1), accepted nodes, the root first, padded with the last one
    num_accepted: torch.Tensor  # (batch,), number of accepted drafts
    emitted: torch.Tensor  # like `path`: accepted drafts, then the bonus token; later entries have no meaning
    is_substituted: torch.Tensor  # like `path`; False if the method takes no samples of the target
    is_finite: torch.Tensor  # (batch,), whether the target's logits for all emitted tokens are finite


def pick_rows(values: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
    """Select nodes, int64 (batch, n), from values (batch, nodes, width). The result is (batch, n, width)."""
    batch, num_nodes, _ = values.shape
    # Whole rows of a flat tensor: `gather` would look up an index for every value.
    rows = nodes + torch.arange(batch, device=nodes.device)[:, None] * num_nodes
    return values.reshape(batch * num_nodes, -1).index_select(0, rows.flatten()).view(*nodes.shape, -1)
