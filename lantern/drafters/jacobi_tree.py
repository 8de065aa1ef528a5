"""Jacobi drafts for trees with siblings, ranked by all results of a position in the pool.

The *pool* holds *results* of earlier steps, see `lantern.drafters.jacobi`. A result belongs to a position. It consists
of the preceding token and the best codes after it, each with its *key*: the target's log-probability plus Gumbel noise.
The code with the largest key is the target's sample.

In a chain every position has one draft, the best code of one result. In a tree a position has several drafts, and they
are ranked by all results of the position together. This is better than one result, since a code in many results is
likely to be accepted.

Each result has a weight and a distribution over its codes. The score of a code is its probability in the weighted
mixture of these distributions. The children of a node are the codes with the highest scores, so siblings are always
different.

The weight and the distribution depend on the *kind* of the result. The kind combines three facts: whether the preceding
token equals the parent's token, the age of the result in steps, and whether it is the newest of its position.
`PoolMixture` holds the coefficients of these facts. The coefficients change how many drafts are accepted, but never an
emitted token, since every draft is verified.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

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
OLDEST = 20  # largest age in steps; older results count as this old
NO_KEY = -30.0  # key of a missing code, relative to the best
DRAFTED = 4 * (OLDEST + 1)  # kind of a draft model's result


class ResultCoefficients(NamedTuple):
    """Coefficients of a linear function of facts about a result of the pool, see `PoolMixture`.

    A result is the target's best codes for a position in an earlier step, with the token that preceded them. Its age is
    the number of steps since then. The function is the sum of `constant` and of each other coefficient times its fact.

    Attributes:
        fits: coefficient of a fact that is 1 if the preceding token of the result equals the token of the draft's
            parent, else 0.
        is_previous: coefficient of a fact that is 1 if the result is from the previous step, else 0.
        is_newest: coefficient of a fact that is 1 if the result is the newest of its position, else 0.
        age: coefficient of the age divided by 10.
        constant: number that is added for every result.
    """

    fits: float
    is_previous: float
    is_newest: float
    age: float
    constant: float = 0.0


class DraftedCoefficients(NamedTuple):
    """The numbers `weight`, `sharpness` and `other` of `PoolMixture` for the best codes of a draft model.

    For results of earlier steps, `PoolMixture` computes these numbers from the age and other facts. For a draft model
    they are constants.
    """

    weight: float
    sharpness: float
    other: float


@dataclass(frozen=True)
class PoolMixture:
    """The coefficients of the distribution from which drafts are chosen.

    The distribution is a weighted mixture with one component per *result* of an earlier step. A result is a preceding
    token and the target's best codes after it, each with its *key*: log-probability plus noise. Results are more
    reliable if they are new, and if their preceding token is the token of the draft's parent. Three numbers of each
    result are therefore computed from these facts, as linear functions that `ResultCoefficients` describes.

    Attributes:
        weight: coefficients of a logit. The softmax of these logits over all results of a position gives the weights of
            the mixture.
        sharpness: coefficients of the logarithm of a factor f. A code of the result has the logit f times its key.
        other: coefficients of one more logit, which represents all codes that the result does not hold. The softmax
            over the logits of the codes and this logit is the distribution of the result.
        drafted: the same three numbers, as constants, for one more result: the best codes of a draft model. Only
            `HybridTreeDrafter` has it.
    """

    weight: ResultCoefficients
    sharpness: ResultCoefficients
    other: ResultCoefficients
    drafted: DraftedCoefficients

    def table(self) -> torch.Tensor:
        """Return three numbers per kind of result, float32 (kinds, 3): `weight`, f = exp(`sharpness`) and `other`.

        The class describes how they make a mixture of results. The kind of a result combines three facts: its age in
        steps, whether it is the newest of its position, and whether its preceding token equals the token of the draft's
        parent. Kinds are numbered min(age, OLDEST) + (OLDEST + 1) is_newest + 2 (OLDEST + 1) is_equal. The last kind,
        DRAFTED, is that of a draft model's codes.
        """
        age = torch.arange(OLDEST + 1)
        fits, is_newest = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]]).repeat_interleave(OLDEST + 1, dim=0).unbind(1)
        age = age.repeat(4)
        facts = torch.stack([fits, age == 1, is_newest, age / 10, torch.ones_like(age)], dim=1)
        columns = torch.tensor([self.weight, self.sharpness, self.other])
        table = torch.cat([facts @ columns.T, torch.tensor([self.drafted])])
        table[:, 1] = table[:, 1].exp()
        return table


# Fitted by maximum likelihood on images of training captions (benchmarks/jacobi_trees.py).
FITTED = PoolMixture(
    weight=ResultCoefficients(fits=2.49, is_previous=0.84, is_newest=0.52, age=-4.56),
    sharpness=ResultCoefficients(fits=1.36, is_previous=0.72, is_newest=-0.32, age=-0.72, constant=-0.09),
    other=ResultCoefficients(fits=-3.01, is_previous=1.68, is_newest=1.06, age=3.82, constant=-4.27),
    drafted=DraftedCoefficients(weight=1.81, sharpness=0.6, other=-3.13),
)


@dataclass
class JacobiTreeState:
    """The state of a `JacobiTreeDrafter`: the pool of results of earlier steps.

    Attributes:
        tokens: the last results of every position, newest first, int64 (batch, positions, NUM_RESULTS, 1 + codes). A
            result is the preceding token, then the best codes after it, best first. -1 marks a missing code. An empty
            result has the preceding token -2, which matches no token.
        keys: step and keys of the same results, float32, shaped like `tokens`. The first entry of a result is the
            number of the step in which it was computed. Then follow the keys of the codes (log-probability plus noise),
            minus the best code's key.
        num_steps: number of decoding steps of each image so far, float32 (batch,).
    """

    tokens: torch.Tensor
    keys: torch.Tensor
    num_steps: torch.Tensor


@dataclass
class Results:
    """The results of earlier steps from which a tree is drafted, NUM_RESULTS for each drafted position.

    A *result* is a preceding token and the target's best codes after it, from an earlier step. All nodes of one depth
    of the tree are drafts of the same position. The axis `depths` begins with depth 1.

    Attributes:
        left: preceding token of each result, int64 (batch, depths, NUM_RESULTS).
        ages: age of each result in steps, plus OLDEST + 1 if the result is the newest of its position, shaped like
            `left`. `kinds` adds a number if the preceding token is that of the parent.
        codes: best codes after the preceding token, best first, int64 (batch, depths, NUM_RESULTS, codes).
        keys: keys of the codes (log-probability plus noise), minus the best code's key, shaped like `codes`.
    """

    left: torch.Tensor
    ages: torch.Tensor
    codes: torch.Tensor
    keys: torch.Tensor

    def after(self, num_depths: int) -> Results:
        """Return the results for drafts deeper than `num_depths`, if those of the first depths have been drafted."""
        return Results(*(part[:, num_depths:] for part in (self.left, self.ages, self.codes, self.keys)))

    def at(self, depth: int, num_parents: int) -> Results:
        """Return the results for the children of all nodes of one depth, repeated for each of these nodes.

        A result is a preceding token and the target's best codes after it, from an earlier step. `HybridTreeDrafter`
        calls this to choose the children depth by depth.

        Args:
            depth: depth of the nodes, which are the parents. Since the axis `depths` begins with depth 1, it is also
                the index of their children on this axis.
            num_parents: number of these nodes.

        Returns:
            Results whose axis `depths` is replaced by an axis of the parents.
        """
        parts = (part[:, depth : depth + 1] for part in (self.left, self.ages, self.codes, self.keys))
        return Results(*(part.expand(-1, num_parents, *part.shape[2:]) for part in parts))

    def kinds(self, parents: torch.Tensor) -> torch.Tensor:
        """Return the kind of each result for the children of each parent, int64 (batch, depths, inner, NUM_RESULTS).

        The kind states how reliable a result is: how old it is, whether it is the newest, and whether its preceding
        token equals the parent's token. It is an index of `PoolMixture.table`.

        Args:
            parents: tokens of the parents, int64 (batch, depths, inner). inner is the number of parents of each depth.
        """
        fits = self.left[:, :, None] == parents[..., None]  # the preceding token is the parent's
        return torch.add(self.ages[:, :, None], fits, alpha=2 * (OLDEST + 1))


class JacobiTreeDrafter(Drafter[JacobiTreeState]):
    """The Jacobi drafter for trees with siblings, which ranks drafts by several results of their position.

    Each earlier step gave a *result* per position: the preceding token, and the target's best codes after it. The
    newest results are kept in a pool. Together they rank the drafts better than the newest result does.

    Args:
        tree: the static tree. Its depth is the number of positions that are drafted in a step.
        config: sizes of the target.
        mixture: coefficients by which the results are weighted. None for `FITTED`.
        num_given: number of depths of the tree, from depth 1 on, whose drafts are already known when `extend` is
            called. 0 if all drafts come from the pool.
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
        self.use(mixture or FITTED)
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
        """Replace the coefficients by which the drafter weights the results of earlier steps."""
        self._table = mixture.table().to(self.tree.parents.device)

    @classmethod
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> Drafter[Any]:
        """Make the drafter of a method, or a `JacobiDrafter` if its tree is a chain.

        In a chain every position has one draft. There the drafts of `JacobiDrafter` are equally good and cost less.
        """
        tree = static_tree(spec.static_choices, models.target.device)
        kind = JacobiDrafter if is_chain(spec.tree_shape) else cls
        return kind(tree, models.target.config)

    def allocate(self, num_rows: int, noise: NoiseField) -> JacobiTreeState:
        """Make an empty pool of results for `num_rows` images, see `Drafter.allocate`."""
        device = self.tree.parents.device
        shape = (num_rows, self.num_positions, NUM_RESULTS, 1 + self.num_codes)
        return JacobiTreeState(
            tokens=torch.zeros(shape, dtype=torch.int64, device=device),
            keys=torch.zeros(shape, device=device),
            num_steps=torch.zeros(num_rows, device=device),
        )

    def fill(self, state: JacobiTreeState, rows: torch.Tensor, prefill: Prefill) -> None:
        """Use the first image token of each prompt as the first draft of every position, see `Drafter.fill`."""
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
        """Return a tree of drafts from the pool of earlier results, see `Drafter.propose`."""
        return self.extend(self.recall(state, lengths), root, lengths)

    def extend(self, results: Results, given: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        """Complete a tree whose first depths already have drafts. The drafts of all later depths come from the pool.

        `HybridTreeDrafter` calls this after a draft model has drafted the first depths. The pool holds results of
        earlier steps. A result is a preceding token and the target's best codes after it.

        All drafts are chosen at once, before most parents have a token. A parent without a token is assumed to be a
        code of the newest result of its position: the r-th best code if the parent is the r-th of its siblings.

        Args:
            results: results of the positions after the root.
            given: tokens of the root and of the nodes that already have drafts, at depths 1 to `num_given`, int64
                (batch, given nodes).
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
        """Read the results of earlier steps, from which drafts are chosen, for the positions after the root.

        A result is a preceding token and the target's best codes after it. There is one position for each depth of the
        tree.

        Args:
            state: the state of the drafter.
            lengths: number of emitted tokens of each image, int64 (batch,).
        """
        index = self._index(lengths, self._ahead[: self.max_depth])
        tokens, keys = _pick(state.tokens, index), _pick(state.keys, index)
        ages = (state.num_steps[:, None, None] - keys[..., 0]).clamp(max=OLDEST).long()
        return Results(tokens[..., 0], ages + self._newest, tokens[..., 1:], keys[..., 1:])

    def mix(self, kinds: torch.Tensor, codes: torch.Tensor, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mix what earlier steps predicted for a position into one distribution over codes per parent.

        A *result* is such a prediction: a preceding token, and the target's best codes after it in an earlier step. It
        has a weight and a distribution over its codes. Both depend on the result's kind: its age, whether it is the
        newest, and whether its preceding token is the parent's token.

        Each code of each result is a *candidate*. Its *share* is what it adds to the probability of its code: the
        weight of the result times the probability of the code in the result. For example, if a result has weight 0.6
        and gives code 7 the probability 0.5, the share is 0.3. If several results hold the same code, there are several
        candidates with this code. `choose` ranks drafts by the sum of their shares.

        Args:
            kinds: kind of each result after each parent, from `Results.kinds`, int64 (batch, depths, inner, results).
            codes: codes of the results, int64 (batch, depths, results, codes).
            keys: keys of the codes (log-probability plus noise), minus the best code's key, shaped like `codes`.

        Returns:
            Two tensors: the codes of the candidates, int64 (batch, depths, candidates), and their shares, (batch,
            depths, inner, candidates).
        """
        weight, sharpness, other = self._table[kinds].unbind(-1)
        logits = torch.cat([keys[:, :, None] * sharpness[..., None], other[..., None]], dim=-1)
        shares = logits.softmax(-1)[..., :-1] * weight.softmax(-1)[..., None]
        return codes.flatten(2), shares.flatten(3)

    def choose(self, codes: torch.Tensor, shares: torch.Tensor, num_siblings: int) -> torch.Tensor:
        """Choose the drafts below every parent: the codes that are most probable in the mixture of results.

        A *candidate* is a code of one result, and its *share* is its probability in the mixture, both from `mix`. The
        probability of a code is the sum of the shares of all candidates with this code.

        Args:
            codes: codes of the candidates, from `mix`.
            shares: shares of the candidates, from `mix`.
            num_siblings: number of codes to return for each parent.

        Returns:
            int64 (batch, depths, inner, num_siblings), best first. -1 marks a missing code.
        """
        is_equal = codes[:, :, :, None] == codes[:, :, None, :]
        scores = shares @ is_equal.to(shares.dtype)
        num_candidates = codes.shape[2]
        is_repeated = (is_equal & self._is_earlier[:num_candidates, :num_candidates]).any(-1)
        best = scores.masked_fill(is_repeated[:, :, None], -1.0).topk(num_siblings, dim=-1)
        tokens = codes[:, :, None].expand_as(scores).gather(3, best.indices)
        return tokens.masked_fill(best.values < 0, -1)

    def observe(self, state: JacobiTreeState, outcome: Outcome, lengths: torch.Tensor) -> None:
        """Put the target's best codes after each node into the pool as later drafts, see `Drafter.observe`.

        A node's token and the best codes after it are a *result*, which belongs to the position after the node.
        Positions further from the root have no node before them. For lack of a better guess, the result of the first of
        the deepest nodes replaces their newest result.
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
        """Put the results of a step into one tensor of the pool, before the old results of the same positions.

        A result is a preceding token and the target's best codes after it. The oldest results of a position are
        dropped.

        Args:
            kept: `JacobiTreeState.tokens` or `JacobiTreeState.keys`, changed in place.
            new: result of each node, as in the last axis of `kept`, (batch, nodes, 1 + codes).
            index: indices of the positions that the step changes, from `_index`, int64 (batch, n).
        """
        old = _pick(kept, index).flatten(1, 2)
        renewed = torch.cat([new, old], dim=1).index_select(1, self._renewed)
        kept.view(-1, NUM_RESULTS, kept.shape[3]).index_copy_(
            0, index.flatten(), renewed.view(-1, NUM_RESULTS, kept.shape[3])
        )

    def _index(self, lengths: torch.Tensor, ahead: torch.Tensor) -> torch.Tensor:
        """Return indices that select image positions in a tensor of the pool, int64 (batch, n).

        The indices are those of the flattened axes `batch` and `positions`.

        Args:
            lengths: number of emitted tokens of each image, int64 (batch,).
            ahead: distance of each position from the position of the next token, in tokens, int64 (n,).
        """
        first = torch.arange(len(lengths), device=lengths.device) * self.num_positions + lengths
        return first[:, None] + ahead


def result_codes(keys: torch.Tensor, num_codes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the best codes after each node, which a result of the pool holds, and their keys minus the largest key.

    If top-k or top-p filtering left fewer than `num_codes` codes, the missing ones are -1 with the key NO_KEY.

    Args:
        keys: log-probabilities of the codes plus noise, (batch, nodes, vocab). -inf for codes that were filtered out.
        num_codes: number of codes to return.

    Returns:
        Two tensors (batch, nodes, num_codes), best first: the codes, int64, and the keys.
    """
    best = keys.topk(num_codes, dim=-1)
    codes = best.indices.masked_fill(best.values.isneginf(), -1)
    return codes, (best.values - best.values[..., :1]).clamp(min=NO_KEY)


def _pick(kept: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Read one of the pool's two tensors at some image positions, (batch, n, NUM_RESULTS, 1 + codes).

    Args:
        kept: `JacobiTreeState.tokens` or `JacobiTreeState.keys`.
        index: indices of the positions, from `JacobiTreeDrafter._index`, int64 (batch, n).
    """
    return kept.flatten(0, 1).index_select(0, index.flatten()).view(*index.shape, *kept.shape[2:])


def _renewed_results(tree: StaticTree) -> torch.Tensor:
    """Return the indices by which `observe` updates the pool of one image, int64 (positions * NUM_RESULTS,).

    A *result* of a position is a preceding token and the target's best codes after it, from one step. A step changes
    the results of 2 * depth + 1 positions: depth + 1 that follow nodes of the tree, and depth positions after these.
    Let a list hold the results after all nodes, then the old results of these positions. The returned indices select
    the new results of the positions from the list.

    - A position directly after nodes of the tree gets the results of these nodes, then its newest old results.
    - A later position keeps its results, except the newest one. The result of the first of the deepest nodes replaces
      it.

    Args:
        tree: the static tree.
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
    """Return the indices by which `JacobiTreeDrafter.extend` finds the tokens of parents and the drafts of nodes.

    The drafts of the first `num_given` depths are known before `extend` is called. All other drafts are chosen from
    *results*. A result is a preceding token and the target's best codes after it, from an earlier step.

    Args:
        tree: the tree.
        num_codes: number of codes of a result.
        num_given: number of depths of the tree, from depth 1 on, whose drafts are known before.

    Returns:
        Two int64 tensors.

        - The first, (depths, inner), states where the token of each parent is: an index into the tokens that are known
          before, followed by the codes of each position's newest result. Depths with fewer than `inner` parents are
          padded with 0.
        - The second, (drafted nodes,), states where the draft of each node is: an index into the flattened drafts that
          `choose` returns for all parents.
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
