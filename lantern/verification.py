"""What verification reads and finds: the target's scores of a filled tree, which nodes are accepted, which path is
taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from lantern.draft_tree import DraftTree
from lantern.drafting import Proposal
from lantern.noise import NoiseField
from lantern.sampling import SamplingConfig, filter_logits


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
    # Not cached properties: torch.compile does not trace the locks that those have before Python 3.12.
    _weights: torch.Tensor | None = field(default=None, init=False)
    _keys: torch.Tensor | None = field(default=None, init=False)

    @property
    def weights(self) -> torch.Tensor:
        """Log-weights after temperature and filters, like logits, -inf where filtered; the logits where greedy."""
        if self._weights is None:
            self._weights = self.logits if self.sampling.is_greedy else filter_logits(self.logits, self.sampling)
        return self._weights

    @property
    def keys(self) -> torch.Tensor:
        """Weights with the target's noise, whose largest is the target's token; the logits where greedy."""
        if self._keys is None:
            noise = None if self.sampling.is_greedy else self.noise.gumbel("target", self.positions)
            self._keys = self.weights if noise is None else self.weights + noise
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
        is_accepted: bool, (batch, nodes): accepted by its parent. Nodes behind one that is not may never be judged and
            are False then.
        path: int64, (batch, max_depth + 1): the nodes that are taken, root first, padded with the last.
        num_accepted: int64, (batch,): drafts on the path.
        emitted: int64, (batch, max_depth + 1): the accepted drafts, then the token behind them; the rest has no
            meaning.
        is_substituted: bool, like emitted: differs from the target's own token; False where the method draws none.
        is_finite: bool, (batch,): whether the numbers were of which the last emitted token has the largest.
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


def inner_places(tree: DraftTree) -> torch.Tensor:
    """Place of each node among those that may have children, int64 (1, nodes); 0 for the others."""
    num_inner = tree.num_nodes if tree.parent_nodes is None else len(tree.parent_nodes)
    return of_all_nodes(torch.arange(num_inner, device=tree.parents.device)[None], tree, 0)


def of_all_nodes(values: torch.Tensor, tree: DraftTree, fill: int) -> torch.Tensor:
    """Values of the nodes that may have children, (rows, inner, ...), among those of all nodes, (rows, nodes, ...)."""
    if tree.parent_nodes is None:
        return values
    whole = values.new_full((len(values), tree.num_nodes, *values.shape[2:]), fill)
    return whole.index_copy(1, tree.parent_nodes, values)


def child_tokens(proposal: Proposal) -> torch.Tensor:
    """Drafted tokens of every inner node's children, int64 (batch, inner, m), -1 where there is none."""
    children = proposal.tree.children.expand(len(proposal.tokens), -1, -1)
    tokens = proposal.tokens.gather(1, children.clamp(min=0).flatten(1)).view(children.shape)
    return tokens.masked_fill(children < 0, -1)


def longest_path(
    tree: DraftTree, is_accepted: torch.Tensor, order: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The deepest node whose whole path from the root is accepted; the first of them where there are several.

    Args:
        tree: structure.
        is_accepted: bool, (batch, nodes): accepted by its parent; the root's entry is ignored.
        order: int64, (batch or 1, nodes), in [0, nodes): which of several deepest nodes is first; by default node
            numbers.

    Returns:
        (path, int64 (batch, max_depth + 1), padded with its last node; number of accepted drafts, int64 (batch,)).
    """
    reached = tree.depths.masked_fill(~reached_nodes(tree, is_accepted), -1)
    if order is None:
        counts, best = reached.max(dim=1)
    else:
        best = (reached * tree.num_nodes - order).argmax(dim=1)
        counts = reached.gather(1, best[:, None]).squeeze(1)
    index = best[:, None, None].expand(-1, 1, tree.paths.shape[2])
    paths = tree.paths.expand(len(best), -1, -1)
    return paths.gather(1, index).squeeze(1), counts


def reached_nodes(tree: DraftTree, is_accepted: torch.Tensor) -> torch.Tensor:
    """Nodes whose whole path from the root is accepted, themselves included: bool (batch, nodes).

    Args:
        tree: structure.
        is_accepted: bool, (batch, nodes): accepted by its parent; the root's entry is ignored.
    """
    is_cut = tree.ancestors[:, :, 1:] & ~is_accepted[:, None, 1:]  # (batch, node, ancestor)
    return ~is_cut.any(-1)


def first_leaf(tree: DraftTree) -> torch.Tensor:
    """Lowest-numbered leaf at or below each node, int64 (rows, nodes).

    The authors' code lists a dynamic tree's paths by leaf and takes the first of the longest; greedy relaxed decoding
    is where several are accepted.
    """
    is_leaf = ~(tree.children >= 0).any(-1)  # (rows, nodes)
    node = torch.arange(tree.num_nodes, device=is_leaf.device)
    below = tree.ancestors & is_leaf[:, :, None]  # (rows, leaf, node)
    return torch.where(below, node[None, :, None], tree.num_nodes - 1).amin(dim=1)
