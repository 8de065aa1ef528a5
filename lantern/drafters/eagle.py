"""EAGLE's drafter, whose draft model predicts tokens from the target's hidden states.

EAGLE shifts: the draft model reads token i + 1 of the sequence together with hidden state i, from which the target
predicted this token, and estimates hidden state i + 1. Its sequence is therefore one row shorter than the target's: it
has num_text_tokens - 1 rows of the prompt, and image token n is in row num_text_tokens - 1 + n.

In each step, a *catch-up pass* runs the draft model over the *pending* tokens, which the previous step emitted, with
the target's hidden states. Then it runs once for each further level of the draft tree, and its own estimates take the
place of hidden states. The cache entries of drafts are provisional: later passes mask or overwrite them.

There are three kinds of drafts. "top" drafts are the most probable tokens. "sampled" drafts are sampled without
replacement, with noise that only the draft model uses. "coupled" drafts are sampled with the same Gumbel noise as the
target's tokens, so that both models tend to choose the same token. At temperature 0 all three kinds are "top".

Sources: EAGLE (arXiv 2401.15077), EAGLE-2 (arXiv 2406.16858) for dynamic trees.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from typing_extensions import override

from lantern.draft_tree import StaticTree, level_indices, static_tree, tree_from_parents
from lantern.drafters.base import Drafter, are_finite, best_codes
from lantern.kv_cache import KVCache, round_slots, window_table
from lantern.methods import MethodSpec
from lantern.models.draft import DraftModel
from lantern.models.target import Target
from lantern.noise import DRAFT, TARGET, NoiseField
from lantern.sampling import SamplingConfig, filter_logits
from lantern.state import DecodingModels
from lantern.step import Outcome, Prefill, Proposal
from lantern.tree_shapes import DynamicTreeOptions

# Returns the children of the inner nodes of a level, int64 (batch, inner, n), best first. Arguments: the level's depth;
# tokens of the inner nodes, int64 (batch, inner); their keys, (batch, inner, vocab); and n, the number of children.
Choose = Callable[[int, torch.Tensor, torch.Tensor, int], torch.Tensor]


@dataclass
class EagleState:
    """The draft model's cache, and the pending tokens. Entries from `counts` on have no meaning."""

    cache: KVCache
    noise: NoiseField
    tokens: torch.Tensor  # pending tokens, int64 (batch, most_pending)
    hidden: torch.Tensor  # the target's states that predicted them, (branches, batch, most_pending, dim)
    counts: torch.Tensor  # number of pending tokens, int64 (batch,), at least 1


class EagleDrafter(Drafter[EagleState]):
    """The drafter that fills a static or dynamic tree with drafts of a draft model.

    Args:
        drafts: "top", "sampled" or "coupled".
        most_pending: largest number of tokens that a step emits. None for the longest path of `tree` plus 1. It is
            larger if `tree` is only a part of the verified tree.
    """

    tree: StaticTree | DynamicTreeOptions

    def __init__(
        self,
        draft: DraftModel,
        target: Target,
        drafts: str | None,
        tree: StaticTree | DynamicTreeOptions,
        sampling: SamplingConfig,
        most_pending: int | None = None,
    ) -> None:
        if target.config.small_grid:  # the draft model's rotary table has no entries for its tokens
            raise ValueError(
                "a draft model needs images without a smaller image before them, got small_grid "
                f"{target.config.small_grid}; use drafts jacobi"
            )
        self.draft = draft
        self.target = target
        self.tree = tree
        self.sampling = sampling
        self.drafts = "top" if sampling.is_greedy else drafts
        self.noise_streams = (DRAFT,) if self.drafts == "sampled" else ()
        self.num_text_rows = target.config.num_text_tokens - 1
        self.dtype = target.dtype
        if isinstance(tree, StaticTree):
            self.max_depth = tree.max_depth
            num_inner = len(tree.parent_nodes) - 1  # without the root
            self._levels = _plan_levels(tree, self.dtype)
        else:
            self.max_depth = tree.depth + 1  # the catch-up pass drafts a level as well
            num_inner = tree.depth * tree.top_k
            self._levels = []
        self.most_pending = self.max_depth + 1 if most_pending is None else most_pending
        # The catch-up pass writes `most_pending` rows, the first pending token's first, and the tree `num_inner` rows
        # after the root. Both may go past the end of the image. One row is to spare.
        num_image_slots = target.config.num_image_tokens + max(self.most_pending, num_inner) + 1
        self.num_slots = round_slots(self.num_text_rows + num_image_slots)
        steps = torch.arange(self.most_pending, device=target.device)
        # Causal: token i sees rows 0 to i. Rows from `counts` on are of old tokens, and overwritten before anything
        # attends to them.
        self._catch_up_layout = _Layout(steps, steps, window_table(steps[None, :, None] >= steps, self.dtype))

    @classmethod
    @override
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> EagleDrafter:
        if isinstance(spec.tree_shape, DynamicTreeOptions):
            tree = spec.tree_shape
        else:
            tree = static_tree(spec.static_choices, models.target.device)
        return cls(models.require_draft(spec.label), models.target, spec.drafts, tree, sampling)

    @override
    def allocate(self, num_rows: int, noise: NoiseField) -> EagleState:
        device = self.target.device
        dim = self.draft.config.dim
        branches = 1 + self.sampling.is_guided
        most = self.most_pending
        visible = torch.ones(branches, num_rows, self.num_text_rows, dtype=torch.bool, device=device)
        return EagleState(
            cache=self.draft.make_cache(visible, self.num_slots),
            noise=noise,
            tokens=torch.zeros(num_rows, most, dtype=torch.int64, device=device),
            hidden=torch.zeros(branches, num_rows, most, dim, dtype=self.dtype, device=device),
            counts=torch.ones(num_rows, dtype=torch.int64, device=device),
        )

    @override
    def fill(self, state: EagleState, rows: torch.Tensor, prefill: Prefill) -> None:
        n = self.num_text_rows
        if n > 0:  # 0 for a class prompt, whose only hidden state belongs to the first image token
            # The shift: hidden state r goes with prompt id r + 1.
            ids = None if prefill.ids is None else prefill.ids[:, :, 1:]
            cache = self.draft.prefill(prefill.hidden[:, :, :n], prefill.mask[:, :, :n], n, ids)
            state.cache.copy_rows(rows, cache)
        # The last hidden state of the prompt predicted the first image token, which is pending.
        state.tokens[:, :1].index_copy_(0, rows, prefill.first)
        state.hidden[:, :, :1].index_copy_(1, rows, prefill.hidden[:, :, n:])
        state.counts.index_fill_(0, rows, 1)

    @override
    def propose(
        self, state: EagleState, root: torch.Tensor, lengths: torch.Tensor, choose: Choose | None = None
    ) -> Proposal:
        """Run the catch-up pass, and draft a tree after the pending tokens.

        Args:
            choose: chooses the drafts below the nodes of a static tree. By default they are the codes with the largest
                keys, the draft model's log-probabilities plus noise.
        """
        # The pending tokens are the last emitted ones, up to the root. The estimate at the root predicts the root's
        # children.
        begin = lengths - state.counts
        last = state.counts[:, None] - 1
        hidden = self._run(state, state.tokens, state.hidden, begin, self._catch_up_layout)
        hidden = pick_nodes(hidden, last)
        if isinstance(self.tree, StaticTree):
            return self._propose_static(self.tree, state, root, hidden, lengths, choose)
        return self._propose_dynamic(self.tree, state, root, hidden, lengths)

    @override
    def observe(self, state: EagleState, outcome: Outcome, lengths: torch.Tensor) -> None:
        assert outcome.scores.hidden is not None
        state.tokens.copy_(outcome.emitted)
        # Token j of `emitted` follows node j of the path, whose hidden state predicted it.
        state.hidden.copy_(pick_nodes(outcome.scores.hidden, outcome.path))
        torch.add(outcome.num_accepted, 1, out=state.counts)

    def _run(
        self, state: EagleState, tokens: torch.Tensor, hidden: torch.Tensor, begin: torch.Tensor, layout: _Layout
    ) -> torch.Tensor:
        """Run the draft model over new tokens ("nodes"), and return its estimates, (branches, batch, nodes, dim).

        The nodes are the pending tokens or nodes of the tree. `begin` is the image position of each image's first node.
        """
        # Row of the first node, in the cache and in the draft model's rotary table.
        origin = (begin + self.num_text_rows)[:, None]
        rotary_positions = (origin + layout.steps).expand(-1, tokens.shape[1])
        mask = state.cache.mask(layout.window, origin[:, 0])
        tokens = tokens.clamp(min=0)  # a missing draft is -1, for which there is no embedding
        return self.draft.extend(state.cache, tokens, hidden, origin + layout.slots, rotary_positions, mask)

    def _weights(
        self, state: EagleState, hidden: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the draft model's logits, unnormalised log-probabilities and keys, each (batch, nodes, vocab).

        `positions` are the image positions that `hidden` predicts. "top" drafts have no noise in their keys.
        """
        logits = self.target.guided_logits(hidden, self.sampling.cfg_scale, positions)
        if self.sampling.is_greedy:
            return logits, logits, logits
        weights = filter_logits(logits, self.sampling)
        if self.drafts == "top":
            return logits, weights, weights
        stream = TARGET if self.drafts == "coupled" else DRAFT
        return logits, weights, weights + state.noise.gumbel(stream, positions)

    def _propose_static(
        self,
        tree: StaticTree,
        state: EagleState,
        root: torch.Tensor,
        hidden: torch.Tensor,
        lengths: torch.Tensor,
        choose: Choose | None,
    ) -> Proposal:
        """Fill a static tree level by level. `hidden` is the draft model's estimate at the root."""
        levels = [root]
        tokens = root
        probs = []
        logits = []
        for depth, plan in enumerate(self._levels):
            if depth > 0:  # the catch-up pass has processed the root
                tokens = levels[-1].index_select(1, plan.tokens)
                hidden = self._run(state, tokens, hidden.index_select(2, plan.parents), lengths, plan.layout)
            positions = (lengths + depth)[:, None].expand(-1, hidden.shape[2])
            found, weights, keys = self._weights(state, hidden, positions)
            logits.append(found)
            if self.drafts == "sampled" or self.keeps_probs:  # no verifier reads those of others
                probs.append(weights.softmax(-1))
            # (batch, inner, width). With Gumbel noise, the largest keys are a sample without replacement.
            children = best_codes(keys, plan.width) if choose is None else choose(depth, tokens, keys, plan.width)
            levels.append(children.flatten(1).index_select(1, plan.drafted))
        draft_probs = torch.cat(probs, dim=1) if probs else None
        return Proposal(torch.cat(levels, dim=1), tree, draft_probs, are_finite(logits))

    def _propose_dynamic(
        self,
        options: DynamicTreeOptions,
        state: EagleState,
        root: torch.Tensor,
        hidden: torch.Tensor,
        lengths: torch.Tensor,
    ) -> Proposal:
        """Choose a dynamic tree by beam search, and keep the candidates on the most probable paths.

        The beam is k nodes of the same depth. Every node of the beam gets k children, its most probable next tokens,
        and all children are candidates for the tree. The k children with the most probable paths are the next beam.
        "coupled" drafts are ranked by their keys, so that the noise counts as part of the probabilities.

        Source: EAGLE-2, section 4; jadohu/LANTERN cnets_llamagen.py (topK_genrate).
        """
        k = options.top_k
        batch = len(lengths)
        beam = torch.arange(k, device=root.device)
        root_logits, _, keys = self._weights(state, hidden, lengths[:, None])
        logits = [root_logits]
        root_scores, root_tokens = _children(keys, k)
        # Index 0 is the root, the only node of this pass.
        scores = root_scores[:, 0]  # (batch, k): log-probability of the path to each node of the beam
        tokens = root_tokens[:, 0]  # (batch, k)
        # Parents are numbers of candidates, -1 for the root. (batch, n) each.
        candidates = [(tokens, scores, torch.full_like(tokens, -1))]
        number = beam.expand(batch, k)  # indices of the beam's nodes among all candidates
        hidden = hidden.expand(-1, -1, k, -1)  # the first beam's nodes have one parent, the root
        # Which nodes of all beams a node attends to: itself and its ancestors.
        visible = torch.zeros(batch, k, options.depth * k, dtype=torch.bool, device=root.device)
        for level in range(options.depth):
            slots = (beam + level * k).expand(batch, k)
            visible = visible.scatter(2, slots[..., None], True)
            # Each beam has k slots of its own. All its nodes have the same image position.
            layout = _Layout(slots, level, window_table(visible, self.dtype))
            hidden = self._run(state, tokens, hidden, lengths, layout)
            found, _, keys = self._weights(state, hidden, (lengths + level + 1)[:, None].expand(-1, k))
            logits.append(found)
            last_scores, last_tokens = _children(keys, k)  # (batch, k, k)
            child_scores = (last_scores + scores[..., None]).flatten(1)
            child_tokens = last_tokens.flatten(1)
            candidates.append((child_tokens, child_scores, number.repeat_interleave(k, dim=1)))
            scores, best = child_scores.topk(k, dim=1)
            tokens = child_tokens.gather(1, best)
            # Candidates are numbered in the order in which they are found: k below the root, then k * k per level.
            number = best + k + level * k * k
            parent = best // k  # the children of beam node b are b k to b k + k - 1
            hidden = pick_nodes(hidden, parent)
            visible = visible.gather(1, parent[..., None].expand_as(visible))
        proposal = self._select(root, *(torch.cat(part, dim=1) for part in zip(*candidates, strict=True)))
        proposal.is_finite = are_finite(logits)
        return proposal

    def _select(
        self, root: torch.Tensor, tokens: torch.Tensor, scores: torch.Tensor, parents: torch.Tensor
    ) -> Proposal:
        # The tree of the candidates with the most probable paths. Arguments but `root` are (batch, candidates).
        options = self.tree
        assert isinstance(options, DynamicTreeOptions)
        # With a kept candidate its parent is kept, too: its path is at least as probable, it comes first, and the sort
        # is stable. Sorted by number, parents come before children and siblings stay in drafting order.
        best = scores.sort(dim=1, descending=True, stable=True).indices
        kept = best[:, : options.num_nodes].sort(dim=1).values
        kept_parents = parents.gather(1, kept)
        # Node 0 is the root, so that candidate i of the kept ones is node i + 1.
        parent_nodes = torch.searchsorted(kept, kept_parents.clamp(min=0)) + 1
        parent_nodes = F.pad(torch.where(kept_parents < 0, 0, parent_nodes), (1, 0))
        tree = tree_from_parents(parent_nodes, self.max_depth, options.top_k)
        return Proposal(torch.cat([root, tokens.gather(1, kept)], dim=1), tree)


def pick_nodes(hidden: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
    """Select nodes, int64 (batch, n), from states (branches, batch, nodes, dim), as (branches, batch, n, dim)."""
    return hidden.gather(2, nodes[None, ..., None].expand(len(hidden), -1, -1, hidden.shape[3]))


def _children(keys: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    # Scores and tokens of each node's children, (batch, nodes, k).
    best = keys.log_softmax(-1).topk(k, dim=-1)
    # A code that the filters removed counts as a missing child, token -1, and as very improbable. A finite score keeps
    # its descendants below it, where -inf would tie them.
    return best.values.clamp(min=-1e3), best.indices.masked_fill(best.values.isneginf(), -1)


@dataclass
class _Layout:
    """Where the nodes of one pass are, relative to its first row."""

    slots: torch.Tensor  # in the key/value cache, int64 (nodes,) or (batch, nodes)
    steps: torch.Tensor | int  # image positions, int64 (nodes,), or one for alternative drafts of the same position
    window: torch.Tensor  # which nodes each node attends to, from `window_table`


@dataclass
class _LevelPlan:
    """The plan by which the children of one level of a static tree are drafted.

    The draft model drafts `width` tokens for each inner node of a level, although a node may have fewer children.
    `drafted` selects those that become nodes. For example, if two nodes have two children and one child, `width` is 2
    and `drafted` is [0, 1, 2].
    """

    width: int
    drafted: torch.Tensor
    tokens: torch.Tensor  # this and the next are from `level_indices`
    parents: torch.Tensor
    layout: _Layout  # of the pass over the level's nodes; not read for the root


def _plan_levels(tree: StaticTree, dtype: torch.dtype) -> list[_LevelPlan]:
    plans = []
    for depth, nodes in enumerate(tree.levels):
        # Only inner nodes are run and have slots. The root is already in the cache. Depth 1 is the first new row.
        window = window_table(tree.ancestors[:, nodes][:, :, tree.parent_nodes[1:]], dtype)
        layout = _Layout(tree.inner_ordinal[nodes], depth - 1, window)
        plans.append(_LevelPlan(tree.level_children[depth], tree.drafted[depth], *level_indices(tree, depth), layout))
    return plans
