"""Jacobi drafts for trees with siblings, ranked by all results of a position in the pool.

`lantern.drafters.jacobi` explains the pool: what the target sampled for the next positions in earlier steps. In a chain
every position has one draft, which the newest suitable result gives. A tree has several drafts of a position, and the
results together rank them better than one result does: a code that many results hold is likely to be right.

A result has a weight and a distribution of its codes. The score of a code is its probability in the mixture of these
distributions. The children of a node are the codes with the highest scores, so siblings are always different. Both
depend on three facts of the result: whether its preceding token is the parent's, how old it is, and whether it is the
newest of its position. `PoolMixture` holds the numbers. They change how many drafts are right, and never a token: every
draft is verified.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from lantern.decoding_state import DecodingModels
from lantern.draft_tree import StaticTree, static_tree
from lantern.drafters.base import Drafter
from lantern.drafters.jacobi import JacobiDrafter
from lantern.methods import MethodSpec, is_chain
from lantern.models.config import TargetConfig
from lantern.noise import NoiseField
from lantern.sampling import SamplingConfig
from lantern.step import Outcome, Prefill, Proposal

NUM_RESULTS = 16  # results per position in the pool
NUM_CODES = 6  # codes per result
OLDEST = 20  # steps; older results count as so old
NO_KEY = -30.0  # key of a missing code, relative to the best
DRAFTED = 4 * (OLDEST + 1)  # kind of a draft model's result


@dataclass(frozen=True)
class PoolMixture:
    """The numbers by which the results of a position are mixed.

    Each attribute has four numbers, which are added for a result whose preceding token is the parent's, for one of the
    last step, for the newest of its position, and times its age in tens of steps. Two attributes have a constant as the
    fifth.

    Source: maximum likelihood on images of training captions (benchmarks/jacobi_trees.py).

    Attributes:
        weight: logarithm of the result's weight.
        sharpness: logarithm of the factor of its keys, whose softmax is the distribution of its codes.
        other: logit of all codes that the result does not hold.
        drafted: the three values of a draft model's result, which has none of these facts.
    """

    weight: tuple[float, ...] = (2.49, 0.84, 0.52, -4.56)
    sharpness: tuple[float, ...] = (1.36, 0.72, -0.32, -0.72, -0.09)
    other: tuple[float, ...] = (-3.01, 1.68, 1.06, 3.82, -4.27)
    drafted: tuple[float, float, float] = (1.81, 0.6, -3.13)

    def table(self) -> torch.Tensor:
        """Return weight, factor of the keys and logit of other codes for every kind of result, float32 (kinds, 3).

        The kind of a result is its age, plus OLDEST + 1 if it is the newest, plus 2 (OLDEST + 1) if its preceding token
        is the parent's. DRAFTED is the last kind.
        """
        age = torch.arange(OLDEST + 1)
        fits, is_newest = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]]).repeat_interleave(OLDEST + 1, dim=0).unbind(1)
        age = age.repeat(4)
        facts = torch.stack([fits, age == 1, is_newest, age / 10, torch.ones_like(age)], dim=1)
        columns = torch.tensor([(*self.weight, 0.0), self.sharpness, self.other])
        table = torch.cat([facts @ columns.T, torch.tensor([self.drafted])])
        table[:, 1] = table[:, 1].exp()
        return table


@dataclass
class JacobiTreeState:
    """The state of the drafter. A *result* is the preceding token and the best codes after it, best first.

    Attributes:
        tokens: the last results of every position, newest first, int64 (batch, positions, NUM_RESULTS, 1 + codes).
            -1 marks a missing code. An empty result has the preceding token -2, which matches no token.
        keys: the step of each result, then the keys of its codes less the best key, float32, shaped like `tokens`.
        num_steps: number of steps of each image, float32 (batch,).
    """

    tokens: torch.Tensor
    keys: torch.Tensor
    num_steps: torch.Tensor


@dataclass
class Results:
    """The results of some positions.

    Attributes:
        left: the preceding tokens, int64 (batch, depths, NUM_RESULTS).
        ages: their kinds if the preceding token is not the parent's, see `PoolMixture.table`, shaped like `left`.
        codes: best codes after the preceding token, best first, int64 (batch, depths, NUM_RESULTS, codes).
        keys: keys of the codes, less the best key, shaped like `codes`.
    """

    left: torch.Tensor
    ages: torch.Tensor
    codes: torch.Tensor
    keys: torch.Tensor

    def after(self, num_depths: int) -> Results:
        """Return the results without those of the first positions."""
        return Results(*(part[:, num_depths:] for part in (self.left, self.ages, self.codes, self.keys)))

    def at(self, depth: int, num_parents: int) -> Results:
        """Return the results of one position, once for every parent, (batch, num_parents, ...)."""
        parts = (part[:, depth : depth + 1] for part in (self.left, self.ages, self.codes, self.keys))
        return Results(*(part.expand(-1, num_parents, *part.shape[2:]) for part in parts))

    def kinds(self, parents: torch.Tensor) -> torch.Tensor:
        """Return the kinds of the results after every parent, int64 (batch, depths, inner, NUM_RESULTS).

        Args:
            parents: tokens of the parents, int64 (batch, depths, inner).
        """
        fits = self.left[:, :, None] == parents[..., None]  # the preceding token is the parent's
        return torch.add(self.ages[:, :, None], fits, alpha=2 * (OLDEST + 1))


class JacobiTreeDrafter(Drafter[JacobiTreeState]):
    """Drafts the codes that the target's samples of earlier steps make most likely.

    Args:
        tree: the tree. Its depth is the window, the number of positions that are drafted in a step.
        config: sizes of the target.
        mixture: numbers of the mixture.
        num_given: number of depths whose drafts another drafter gives, see `extend`.
    """

    tree: StaticTree

    def __init__(
        self, tree: StaticTree, config: TargetConfig, mixture: PoolMixture | None = None, num_given: int = 0
    ) -> None:
        self.tree = tree
        self.num_given = num_given
        self.max_depth = tree.max_depth
        self.config = config
        self.num_codes = min(NUM_CODES, config.vocab_size)
        self.num_positions = config.num_image_tokens + 2 * tree.max_depth + 1
        device = tree.parents.device
        self.use(mixture or PoolMixture())
        self._ahead = torch.arange(2 * tree.max_depth + 1, device=device)  # positions that a step changes
        self._newest = torch.where(torch.arange(NUM_RESULTS, device=device) == 0, OLDEST + 1, 0)
        self._renewed = _renewed_results(tree).to(device)
        self._line_end = torch.where(tree.ranks[0] == 0, config.num_codes, -1)
        self._is_draft = tree.depths[0] > 0
        candidates = torch.arange((NUM_RESULTS + 1) * self.num_codes, device=device)
        self._is_earlier = candidates[:, None] > candidates
        parents, drafted = _layout(tree, self.num_codes, num_given)
        self._num_inner = parents.shape[1]
        self._parents, self._drafted = parents.flatten().to(device), drafted.to(device)
        self.num_siblings = int(tree.ranks.max()) + 1

    def use(self, mixture: PoolMixture) -> None:
        """Mix results by other numbers."""
        self._table = mixture.table().to(self.tree.parents.device)

    @classmethod
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> Drafter[Any]:
        """Make the drafter. For a chain make a `JacobiDrafter`, whose drafts are as good and cost less."""
        tree = static_tree(spec.static_choices, models.target.device)
        kind = JacobiDrafter if is_chain(spec.tree_shape) else cls
        return kind(tree, models.target.config)

    def allocate(self, num_rows: int, noise: NoiseField) -> JacobiTreeState:
        """See `Drafter`."""
        device = self.tree.parents.device
        shape = (num_rows, self.num_positions, NUM_RESULTS, 1 + self.num_codes)
        return JacobiTreeState(
            tokens=torch.zeros(shape, dtype=torch.int64, device=device),
            keys=torch.zeros(shape, device=device),
            num_steps=torch.zeros(num_rows, device=device),
        )

    def fill(self, state: JacobiTreeState, rows: torch.Tensor, prefill: Prefill) -> None:
        """Use image token 0 as the first draft of every position."""
        empty = prefill.first.new_full((1 + self.num_codes,), -1)
        empty[0] = -2
        tokens = empty.repeat(len(rows), self.num_positions, NUM_RESULTS, 1)
        tokens[..., 1] = prefill.first[:, :, None]
        keys = state.keys.new_full(tokens.shape, NO_KEY)
        keys[..., 0] = -OLDEST
        keys[..., 1] = 0.0
        state.tokens.index_copy_(0, rows, tokens)
        state.keys.index_copy_(0, rows, keys)
        state.num_steps.index_fill_(0, rows, 0.0)

    def propose(self, state: JacobiTreeState, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        """Return the drafts of the positions after the root."""
        return self.extend(self.recall(state, lengths), root, lengths)

    def extend(self, results: Results, given: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        """Return the given tokens, and drafts of all other nodes.

        All drafts are chosen at once. A parent that is not given itself is therefore taken from the newest result of
        its position: it is the code of the parent's rank.

        Args:
            results: results of the positions after the root.
            given: tokens of the root and of the nodes of the first `num_given` depths, int64 (batch, given nodes).
            lengths: number of emitted tokens of each image, int64 (batch,).
        """
        newest = results.codes[:, :, 0].flatten(1)
        parents = torch.cat([given, newest], dim=1).index_select(1, self._parents)
        results = results.after(self.num_given)
        kinds = results.kinds(parents.view(len(given), results.left.shape[1], self._num_inner))
        drafts = self.choose(*self.mix(kinds, results.codes, results.keys), self.num_siblings)
        tokens = torch.cat([given, drafts.flatten(1).index_select(1, self._drafted)], dim=1)
        if self.config.line_end is not None:  # only one token is possible at the end of a line
            is_end = self.config.ends_line(lengths[:, None] + self.tree.depths - 1)
            tokens = torch.where(is_end & self._is_draft, self._line_end, tokens)
        return Proposal(tokens, self.tree)

    def recall(self, state: JacobiTreeState, lengths: torch.Tensor) -> Results:
        """Return the results of the positions after the root."""
        index = self._index(lengths, self._ahead[: self.max_depth])
        tokens, keys = _pick(state.tokens, index), _pick(state.keys, index)
        ages = (state.num_steps[:, None, None] - keys[..., 0]).clamp(max=OLDEST).long()
        return Results(tokens[..., 0], ages + self._newest, tokens[..., 1:], keys[..., 1:])

    def mix(self, kinds: torch.Tensor, codes: torch.Tensor, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return candidates, and their shares of the mixture after every parent.

        Args:
            kinds: kinds of the results after every parent, int64 (batch, depths, inner, results).
            codes: codes of the results, int64 (batch, depths, results, codes).
            keys: keys of the codes, shaped like `codes`.

        Returns:
            (codes, int64 (batch, depths, candidates); shares, (batch, depths, inner, candidates)). A candidate is a
            code of a result, so candidates may be equal.
        """
        weight, sharpness, other = self._table[kinds].unbind(-1)
        logits = torch.cat([keys[:, :, None] * sharpness[..., None], other[..., None]], dim=-1)
        shares = logits.softmax(-1)[..., :-1] * weight.softmax(-1)[..., None]
        return codes.flatten(2), shares.flatten(3)

    def choose(self, codes: torch.Tensor, shares: torch.Tensor, num_siblings: int) -> torch.Tensor:
        """Return the codes with the highest scores after every parent, int64 (batch, depths, inner, num_siblings).

        The score of a code is the sum of its candidates' shares. -1 marks a missing code.

        Args:
            codes: as returned by `mix`.
            shares: as returned by `mix`.
            num_siblings: number of codes.
        """
        is_equal = codes[:, :, :, None] == codes[:, :, None, :]
        scores = shares @ is_equal.to(shares.dtype)
        num_candidates = codes.shape[2]
        is_repeated = (is_equal & self._is_earlier[:num_candidates, :num_candidates]).any(-1)
        best = scores.masked_fill(is_repeated[:, :, None], -1.0).topk(num_siblings, dim=-1)
        tokens = codes[:, :, None].expand_as(scores).gather(3, best.indices)
        return tokens.masked_fill(best.values < 0, -1)

    def observe(self, state: JacobiTreeState, outcome: Outcome, lengths: torch.Tensor) -> None:
        """Put the results of all nodes into the pool.

        The result of the last node is also the newest of the positions after the window.
        """
        num_nodes = self.tree.num_nodes  # a hybrid tree has more nodes
        codes, keys = result_codes(outcome.scores.keys[:, :num_nodes], self.num_codes)
        steps = state.num_steps[:, None, None].expand(-1, num_nodes, -1)
        index = self._index(lengths, self._ahead)
        new = torch.cat([outcome.proposal.tokens[:, :num_nodes, None], codes], dim=2)
        self._renew(state.tokens, new, index)
        self._renew(state.keys, torch.cat([steps, keys], dim=2), index)
        state.num_steps.add_(1.0)

    def _renew(self, kept: torch.Tensor, new: torch.Tensor, index: torch.Tensor) -> None:
        """Put new results, (batch, nodes, 1 + codes), before the old ones of the positions at `index`."""
        old = _pick(kept, index).flatten(1, 2)
        renewed = torch.cat([new, old], dim=1).index_select(1, self._renewed)
        kept.view(-1, NUM_RESULTS, kept.shape[3]).index_copy_(
            0, index.flatten(), renewed.view(-1, NUM_RESULTS, kept.shape[3])
        )

    def _index(self, lengths: torch.Tensor, ahead: torch.Tensor) -> torch.Tensor:
        """Return the indices of positions among those of all images, int64 (batch, n)."""
        first = torch.arange(len(lengths), device=lengths.device) * self.num_positions + lengths
        return first[:, None] + ahead


def result_codes(keys: torch.Tensor, num_codes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the best codes of some nodes, and their keys less the best, both (batch, nodes, num_codes).

    -1 marks a missing code, if the filters left too few. Its key is NO_KEY.

    Args:
        keys: (batch, nodes, vocab), -inf for codes that were filtered out.
        num_codes: number of codes.
    """
    best = keys.topk(num_codes, dim=-1)
    codes = best.indices.masked_fill(best.values.isneginf(), -1)
    return codes, (best.values - best.values[..., :1]).clamp(min=NO_KEY)


def _pick(kept: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return the results of positions, (batch, n, NUM_RESULTS, 1 + codes)."""
    return kept.flatten(0, 1).index_select(0, index.flatten()).view(*index.shape, *kept.shape[2:])


def _renewed_results(tree: StaticTree) -> torch.Tensor:
    """Return the indices that select the new results of the positions that a step changes, int64 (n,).

    They are indices into the results of all nodes, followed by the old results of these positions. A position first
    gets the results of the nodes that predict it, then its newest old results. A position after the window gets the
    result of the last node instead of its newest one.
    """
    depths = tree.depths[0].tolist()
    renewed = []
    for ahead in range(2 * tree.max_depth + 1):
        old = [len(depths) + ahead * NUM_RESULTS + number for number in range(NUM_RESULTS)]
        if ahead <= tree.max_depth:
            new = [node for node, depth in enumerate(depths) if depth == ahead]
        else:
            new = [depths.index(tree.max_depth)]
            del old[0]
        renewed += [*new, *old][:NUM_RESULTS]
    return torch.tensor(renewed)


def _layout(tree: StaticTree, num_codes: int, num_given: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where the tokens of parents are, and where the drafts of nodes are.

    Every depth has room for the same number of parents.

    Args:
        tree: the tree.
        num_codes: codes of a result.
        num_given: number of depths whose drafts are given.

    Returns:
        (index of each parent's token in the given tokens, followed by the codes of the newest result of each position,
        int64 (depths, inner); index of each node's draft in the drafts of all parents, flattened, int64 (drafted
        nodes,)).
    """
    depths, ranks, of_nodes = (part[0].tolist() for part in (tree.depths, tree.ranks, tree.parents))
    num_nodes_given = sum(depth <= num_given for depth in depths)
    levels = tree.levels[num_given:]
    num_inner = max(map(len, levels), default=1)
    num_siblings = max(ranks) + 1
    parents = torch.zeros(len(levels), num_inner, dtype=torch.int64)
    slots = {}
    for ahead, nodes in enumerate(levels):
        for number, node in enumerate(nodes.tolist()):
            slots[node] = ahead * num_inner + number
            newest = num_nodes_given + (depths[node] - 1) * num_codes + min(ranks[node], num_codes - 1)
            parents[ahead, number] = node if ahead == 0 else newest
    drafted = [slots[of_nodes[node]] * num_siblings + ranks[node] for node in range(num_nodes_given, len(depths))]
    return parents, torch.tensor(drafted, dtype=torch.int64)
