"""Jacobi drafts for trees with siblings, ranked by all results of their position. They are Lantern's own.

A *result* is the token that preceded a position in an earlier step, and the target's best codes after it with their
keys. The *pool* keeps the newest results of every position. In a chain every position has one draft, the best code of
one result (`lantern.drafters.jacobi`). In a tree it has several, and all results rank them together: a code in many
results is likely to be accepted. The children of a node are the most probable codes c of a mixture over results r,

    P(c) = sum_r softmax(w)_r softmax([f_r key_r, other_r])_c

Here key_r holds the keys of the codes in r, minus the largest, and other_r stands for all other codes. w_r, f_r and
other_r depend on the *kind* of r: its age in steps, whether it is the newest of its position, and whether its preceding
token *fits*, that is, equals the parent's token. They change how many drafts are accepted, but never an emitted token,
since every draft is verified.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from typing_extensions import override

from lantern.draft_tree import StaticTree, static_tree
from lantern.drafters.base import Drafter
from lantern.drafters.jacobi import EMPTY
from lantern.methods import MethodSpec
from lantern.models.config import TargetConfig
from lantern.noise import NoiseField
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels
from lantern.step import Outcome, Prefill, Proposal

NUM_RESULTS = 16  # results per position in the pool
NUM_CODES = 6  # codes per result
OLDEST = 20  # largest age in steps; older results count as this old
NO_KEY = -30.0  # key of a missing code, relative to the best
DRAFTED = 4 * (OLDEST + 1)  # kind of a result of a draft model or state head; all others are smaller


class ResultCoefficients(NamedTuple):
    """Coefficients of facts about a result: `fits`, `is_previous` (age 1) and `is_newest`, 0 or 1, and age / 10."""

    fits: float
    is_previous: float
    is_newest: float
    age: float
    constant: float = 0.0


class DraftedCoefficients(NamedTuple):
    """The constants w, log f and other of one more result: the best codes of a draft model or state head."""

    weight: float
    sharpness: float
    other: float


@dataclass(frozen=True)
class PoolMixture:
    """The coefficients of the mixture: `weight` gives w, `sharpness` gives log f, and `other` gives other.

    Only hybrid drafters read `drafted`.
    """

    weight: ResultCoefficients
    sharpness: ResultCoefficients
    other: ResultCoefficients
    drafted: DraftedCoefficients

    def table(self) -> torch.Tensor:
        """Return w, f and other of each kind of result, float32 (kinds, 3).

        Kinds are numbered min(age, OLDEST) + (OLDEST + 1) is_newest + 2 (OLDEST + 1) fits. The last kind is DRAFTED.
        """
        age = torch.arange(OLDEST + 1)
        fits, is_newest = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]]).repeat_interleave(OLDEST + 1, dim=0).unbind(1)
        age = age.repeat(4)
        facts = torch.stack([fits, age == 1, is_newest, age / 10, torch.ones_like(age)], dim=1)
        columns = torch.tensor([self.weight, self.sharpness, self.other])
        table = torch.cat([facts @ columns.T, torch.tensor([self.drafted])])
        # The coefficients give log f, so that f > 0.
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
    """The pool of every image, (batch, positions, NUM_RESULTS, 1 + codes), results newest first.

    `tokens` holds the preceding token, EMPTY for an empty result, then the codes, best first. -1 marks a missing code.
    In `keys`, the entry of the preceding token holds the number of the step that computed the result, and that of a
    code its key minus the largest.
    """

    tokens: torch.Tensor  # int64
    keys: torch.Tensor  # float32
    num_steps: torch.Tensor  # decoding steps of each image so far; float32 (batch,), as it is stored in `keys`


@dataclass
class Results:
    """The results of the drafted positions, one position per depth of the tree. Index 0 is depth 1."""

    left: torch.Tensor  # preceding tokens, int64 (batch, depths, NUM_RESULTS)
    ages: torch.Tensor  # like `left`: kind of each result if its preceding token does not fit
    codes: torch.Tensor  # int64 (batch, depths, NUM_RESULTS, codes), best first
    keys: torch.Tensor  # like `codes`: keys minus the largest

    def after(self, num_depths: int) -> Results:
        """Return the results from depth num_depths + 1 on."""
        return Results(*(part[:, num_depths:] for part in (self.left, self.ages, self.codes, self.keys)))

    def at(self, depth: int, num_parents: int) -> Results:
        """Return the results for the children of one depth. The axis of depths becomes one of the parents."""
        # Index 0 is depth 1, so the parents' depth is the index of their children.
        parts = (part[:, depth : depth + 1] for part in (self.left, self.ages, self.codes, self.keys))
        return Results(*(part.expand(-1, num_parents, *part.shape[2:]) for part in parts))

    def kinds(self, parents: torch.Tensor) -> torch.Tensor:
        """Return the kinds, (batch, depths, parents, NUM_RESULTS), for children of tokens, (batch, depths, parents)."""
        fits = self.left[:, :, None] == parents[..., None]  # (batch, depths, parents, NUM_RESULTS)
        return torch.add(self.ages[:, :, None], fits, alpha=2 * (OLDEST + 1))


class JacobiTreeDrafter(Drafter[JacobiTreeState]):
    """The drafter that reads all results. With one draft per position, `JacobiDrafter` is as good and costs less.

    Args:
        mixture: None for `FITTED`.
        num_given: number of depths, from depth 1 on, whose drafts come from elsewhere and are passed to `extend`.
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
        # A complete image stays in the batch, and its steps still write 2 * depth + 1 positions from its end on.
        self.num_positions = config.num_image_tokens + 2 * tree.max_depth + 1
        device = tree.parents.device
        self.use(mixture or FITTED)
        self._ahead = torch.arange(2 * tree.max_depth + 1, device=device)  # positions that a step changes
        # What a result's kind adds for `is_newest`.
        self._newest = torch.where(torch.arange(NUM_RESULTS, device=device) == 0, OLDEST + 1, 0)
        self._renewed = _renewed_results(tree).to(device)
        # At the end of a line: the line end, whose number follows the codes, then no draft for further siblings.
        self._line_end = torch.where(tree.ranks[0] == 0, config.num_codes, -1)
        self._is_draft = tree.depths[0] > 0
        # One result more than in the pool: that of a draft model or state head in a `HybridTreeDrafter`.
        candidates = torch.arange((NUM_RESULTS + 1) * self.num_codes, device=device)
        self._is_earlier = candidates[:, None] > candidates  # [i, j]: whether candidate j comes before i
        parents, drafted = _layout(tree, self.num_codes, num_given)
        self._num_inner = parents.shape[1]
        self._parents, self._drafted = parents.flatten().to(device), drafted.to(device)
        self.num_siblings = int(tree.ranks.max()) + 1

    def use(self, mixture: PoolMixture) -> None:
        """Replace the coefficients of the mixture, as `benchmarks/jacobi_trees.py` does."""
        self._table = mixture.table().to(self.tree.parents.device)

    @classmethod
    @override
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> JacobiTreeDrafter:
        return cls(static_tree(spec.static_choices, models.target.device), models.target.config)

    @override
    def allocate(self, num_rows: int, noise: NoiseField) -> JacobiTreeState:
        device = self.tree.parents.device
        shape = (num_rows, self.num_positions, NUM_RESULTS, 1 + self.num_codes)
        return JacobiTreeState(
            tokens=torch.zeros(shape, dtype=torch.int64, device=device),
            keys=torch.zeros(shape, device=device),
            num_steps=torch.zeros(num_rows, device=device),
        )

    @override
    def fill(self, state: JacobiTreeState, rows: torch.Tensor, prefill: Prefill) -> None:
        # Every position starts with empty results, whose only code is the image's first token.
        empty = prefill.first.new_full((1 + self.num_codes,), -1)
        empty[0] = EMPTY
        tokens = empty.repeat(len(rows), self.num_positions, NUM_RESULTS, 1)
        tokens[..., 1] = prefill.first[:, :, None]
        keys = state.keys.new_full(tokens.shape, NO_KEY)
        # As step number: an empty result counts as one of the oldest from the first step on.
        keys[..., 0] = -OLDEST
        keys[..., 1] = 0.0
        state.tokens.index_copy_(0, rows, tokens)
        state.keys.index_copy_(0, rows, keys)
        state.num_steps.index_fill_(0, rows, 0.0)

    @override
    def propose(self, state: JacobiTreeState, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        return self.extend(self.recall(state, lengths), root, lengths)

    def extend(self, results: Results, given: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        """Complete a tree whose first `num_given` depths have drafts. All others come from the pool, at once.

        Args:
            given: tokens of the root and of the nodes at depths 1 to `num_given`, int64 (batch, given nodes).
        """
        # Most parents have no token yet. The r-th best code of the newest result of the position stands for the token
        # of the parent of rank r.
        newest = results.codes[:, :, 0].flatten(1)  # (batch, depths * codes), as `_layout` counts
        parents = torch.cat([given, newest], dim=1).index_select(1, self._parents)
        results = results.after(self.num_given)
        kinds = results.kinds(parents.view(len(given), results.left.shape[1], self._num_inner))
        drafts = self.choose(*self.mix(kinds, results.codes, results.keys), self.num_siblings)
        tokens = torch.cat([given, drafts.flatten(1).index_select(1, self._drafted)], dim=1)
        if self.config.line_end is not None:  # only one token is possible at the end of a line
            # The root is at position lengths - 1.
            is_end = self.config.ends_line(lengths[:, None] + self.tree.depths - 1)
            tokens = torch.where(is_end & self._is_draft, self._line_end, tokens)
        return Proposal(tokens, self.tree)

    def recall(self, state: JacobiTreeState, lengths: torch.Tensor) -> Results:
        """Read the results of the next `max_depth` positions."""
        index = self._index(lengths, self._ahead[: self.max_depth])
        tokens, keys = _pick(state.tokens, index), _pick(state.keys, index)
        # Step numbers stand where `tokens` has the preceding token. A result of the last step has age 1.
        ages = (state.num_steps[:, None, None] - keys[..., 0]).clamp(max=OLDEST).long()
        return Results(tokens[..., 0], ages + self._newest, tokens[..., 1:], keys[..., 1:])

    def mix(self, kinds: torch.Tensor, codes: torch.Tensor, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the candidates of the mixture and what each adds to the probability of its code.

        A candidate is a code of one result. Its *share* is softmax(w)_r softmax([f_r key_r, other_r])_c.

        Returns:
            (codes of the candidates, int64 (batch, depths, candidates); shares, (batch, depths, parents, candidates)).
        """
        # (batch, depths, parents, results), and with codes as the last axis from `logits` on. `sharpness` is f.
        weight, sharpness, other = self._table[kinds].unbind(-1)
        logits = torch.cat([keys[:, :, None] * sharpness[..., None], other[..., None]], dim=-1)
        # The share of all other codes is dropped, since it belongs to none in particular.
        shares = logits.softmax(-1)[..., :-1] * weight.softmax(-1)[..., None]
        return codes.flatten(2), shares.flatten(3)

    def choose(self, codes: torch.Tensor, shares: torch.Tensor, num_siblings: int) -> torch.Tensor:
        """Return the codes with the largest sum of shares, int64 (batch, depths, parents, num_siblings), best first.

        -1 marks a missing code.
        """
        # P(c) = sum of the shares of all candidates with the code c. The product adds them up among the candidates
        # themselves, so that no tensor has the size of the vocabulary.
        is_equal = codes[:, :, :, None] == codes[:, :, None, :]
        scores = shares @ is_equal.to(shares.dtype)
        num_candidates = codes.shape[2]
        # Only the first candidate of each code can be chosen, hence siblings differ.
        is_repeated = (is_equal & self._is_earlier[:num_candidates, :num_candidates]).any(-1)
        best = scores.masked_fill(is_repeated[:, :, None], -1.0).topk(num_siblings, dim=-1)
        tokens = codes[:, :, None].expand_as(scores).gather(3, best.indices)
        return tokens.masked_fill(best.values < 0, -1)  # fewer different codes than siblings

    @override
    def observe(self, state: JacobiTreeState, outcome: Outcome, lengths: torch.Tensor) -> None:
        # The codes after a node are a result of the position after it. Positions further ahead have no node before
        # them, and get a guess (`_renewed_results`).
        num_nodes = self.tree.num_nodes  # a hybrid tree has more nodes
        codes, keys = result_codes(outcome.scores.keys[:, :num_nodes], self.num_codes)
        steps = state.num_steps[:, None, None].expand(-1, num_nodes, -1)
        index = self._index(lengths, self._ahead)
        new = torch.cat([outcome.proposal.tokens[:, :num_nodes, None], codes], dim=2)
        self._renew(state.tokens, new, index)
        self._renew(state.keys, torch.cat([steps, keys], dim=2), index)
        state.num_steps.add_(1.0)

    def _renew(self, kept: torch.Tensor, new: torch.Tensor, index: torch.Tensor) -> None:
        # new: (batch, nodes, 1 + codes). `kept` is `tokens` or `keys` of the pool, and is changed in place.
        old = _pick(kept, index).flatten(1, 2)
        renewed = torch.cat([new, old], dim=1).index_select(1, self._renewed)
        kept.view(-1, NUM_RESULTS, kept.shape[3]).index_copy_(
            0, index.flatten(), renewed.view(-1, NUM_RESULTS, kept.shape[3])
        )

    def _index(self, lengths: torch.Tensor, ahead: torch.Tensor) -> torch.Tensor:
        # Positions `ahead` of the next one, as indices into the flattened axes batch and positions.
        first = torch.arange(len(lengths), device=lengths.device) * self.num_positions + lengths
        return first[:, None] + ahead


def result_codes(keys: torch.Tensor, num_codes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the best codes after each node, int64 (batch, nodes, num_codes), and their keys minus the largest.

    A code that the filters removed is -1 with the key NO_KEY.
    """
    best = keys.topk(num_codes, dim=-1)
    codes = best.indices.masked_fill(best.values.isneginf(), -1)
    return codes, (best.values - best.values[..., :1]).clamp(min=NO_KEY)


def _pick(kept: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Read one tensor of the pool at the positions of `_index`, (batch, n, NUM_RESULTS, 1 + codes)."""
    return kept.flatten(0, 1).index_select(0, index.flatten()).view(*index.shape, *kept.shape[2:])


def _renewed_results(tree: StaticTree) -> torch.Tensor:
    """Return the indices that select the new results of all positions that a step changes.

    They point into a list: the results after all nodes, then NUM_RESULTS old results of each position.
    """
    depths = tree.depths[0].tolist()
    renewed = []
    for ahead in range(2 * tree.max_depth + 1):
        old = [len(depths) + ahead * NUM_RESULTS + number for number in range(NUM_RESULTS)]
        if ahead <= tree.max_depth:
            # A position directly after nodes gets the results of these nodes, then its newest old ones.
            new = [node for node, depth in enumerate(depths) if depth == ahead]
        else:
            # A position further ahead gets a guess, the result of the first of the deepest nodes. The guess replaces
            # the guess of the last step. If it were pushed, guesses would fill the pool before the tree reaches the
            # position.
            new = [depths.index(tree.max_depth)]
            del old[0]
        renewed += [*new, *old][:NUM_RESULTS]
    return torch.tensor(renewed)


def _layout(tree: StaticTree, num_codes: int, num_given: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where `extend` finds the parents' tokens, int64 (depths, parents), and the nodes' drafts, int64 (nodes,).

    The former are indices into the given tokens, then the codes of each position's newest result. They are padded with
    0 at depths with fewer parents. The latter are indices into the flattened result of `choose`.
    """
    depths, ranks, of_nodes = (part[0].tolist() for part in (tree.depths, tree.ranks, tree.parents))
    num_nodes_given = sum(depth <= num_given for depth in depths)
    levels = tree.levels[num_given:]
    num_inner = max(map(len, levels), default=1)  # no levels if all depths are given
    num_siblings = max(ranks) + 1
    parents = torch.zeros(len(levels), num_inner, dtype=torch.int64)
    slots = {}
    for ahead, nodes in enumerate(levels):
        for number, node in enumerate(nodes.tolist()):
            slots[node] = ahead * num_inner + number
            # Parents of the first level have tokens already. A rank without a code of its own takes the last code.
            newest = num_nodes_given + (depths[node] - 1) * num_codes + min(ranks[node], num_codes - 1)
            parents[ahead, number] = node if ahead == 0 else newest
    drafted = [slots[of_nodes[node]] * num_siblings + ranks[node] for node in range(num_nodes_given, len(depths))]
    return parents, torch.tensor(drafted, dtype=torch.int64)
