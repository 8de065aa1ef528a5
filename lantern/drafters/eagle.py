"""EAGLE's drafts: a catch-up pass of the draft model over newly accepted tokens, then one pass per level of the tree.

Drafts are "top" (the most probable tokens), "sampled" (without replacement, with noise of their own) or "coupled"
(with the very noise by which the target will draw, so that both tend to pick the same token). At temperature 0 all
three are "top".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from lantern.attention_mask import window_table
from lantern.decoding_state import DecodingModels
from lantern.draft_tree import StaticTree, static_tree, tree_from_parents
from lantern.drafters.base import Drafter, best_codes
from lantern.kv_cache import KVCache, round_slots
from lantern.methods import MethodSpec
from lantern.models.draft import DraftModel
from lantern.models.target import Target
from lantern.noise import NoiseField
from lantern.sampling import SamplingConfig, filter_logits
from lantern.step import Outcome, Prefill, Proposal
from lantern.tree_shapes import DynamicTreeOptions


@dataclass
class EagleState:
    """What an EAGLE drafter keeps of a batch of images: the draft model's cache, and the tokens that the target has
    emitted and the draft model has not seen.

    Attributes:
        cache: the draft model's.
        noise: of the images.
        tokens: int64, (batch, most at once); the first `counts` count.
        hidden: (captions, batch, most at once, dim): the target's hidden states that predicted them.
        counts: int64, (batch,), >= 1.
    """

    cache: KVCache
    noise: NoiseField
    tokens: torch.Tensor
    hidden: torch.Tensor
    counts: torch.Tensor


class EagleDrafter(Drafter):
    """Drafts trees by the draft model; what belongs to a batch is in its `EagleState`.

    Args:
        draft: the draft model.
        target: the target model, for its head and its layout.
        drafts: "top", "sampled" or "coupled".
        tree: the static tree, or options of the dynamic one.
        sampling: the target's temperature, filters and guidance, which the draft model shares.
        most_pending: tokens that a step may emit; by default those of the deepest path and the one behind it.
    """

    def __init__(
        self,
        draft: DraftModel,
        target: Target,
        drafts: str,
        tree: StaticTree | DynamicTreeOptions,
        sampling: SamplingConfig,
        most_pending: int | None = None,
    ) -> None:
        self.draft, self.target, self.tree, self.sampling = draft, target, tree, sampling
        self.drafts = "top" if sampling.is_greedy else drafts
        self.noise_streams = ("draft",) if self.drafts == "sampled" else ()
        self.num_text_rows = target.config.num_text_tokens - 1
        is_static = isinstance(tree, StaticTree)
        self.max_depth = tree.max_depth if is_static else tree.depth + 1
        self.most_pending = most_pending or self.max_depth + 1
        num_inner = len(tree.parent_nodes) - 1 if is_static else tree.depth * tree.top_k
        num_image_slots = target.config.num_image_tokens + max(self.most_pending, num_inner) + 1
        self.num_slots, self.dtype = round_slots(self.num_text_rows + num_image_slots), target.dtype
        steps = torch.arange(self.most_pending, device=target.device)
        self._catch_up_places = _Places(steps, steps, self._window(steps[None, :, None] >= steps))
        self._levels = _plan_levels(tree, self._window) if is_static else []

    @classmethod
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> EagleDrafter:
        """See `Drafter`."""
        shape = spec.tree_shape
        tree = shape if isinstance(shape, DynamicTreeOptions) else static_tree(shape, models.target.device)
        return cls(models.draft, models.target, spec.drafts, tree, sampling)

    def allocate(self, num_rows: int, noise: NoiseField) -> EagleState:
        """See `Drafter`."""
        config, device = self.draft.config, self.target.device
        captions, most = 1 + self.sampling.is_guided, self.most_pending
        visible = torch.ones(captions, num_rows, self.num_text_rows, dtype=torch.bool, device=device)
        return EagleState(
            cache=self.draft.make_cache(visible, self.num_slots),
            noise=noise,
            tokens=torch.zeros(num_rows, most, dtype=torch.int64, device=device),
            hidden=torch.zeros(captions, num_rows, most, config.dim, dtype=self.dtype, device=device),
            counts=torch.ones(num_rows, dtype=torch.int64, device=device),
        )

    def fill(self, state: EagleState, rows: torch.Tensor, prefill: Prefill) -> None:
        """Runs the captions of new prompts through the draft model; see `Drafter`."""
        n = self.num_text_rows
        if n > 0:  # a class is one row, whose hidden state goes with image token 0
            ids = None if prefill.ids is None else prefill.ids[:, :, 1:]
            cache = self.draft.prefill(prefill.hidden[:, :, :n], prefill.mask[:, :, :n], n, ids)
            state.cache.copy_rows(rows, cache)
        state.tokens[:, :1].index_copy_(0, rows, prefill.first)
        state.hidden[:, :, :1].index_copy_(1, rows, prefill.hidden[:, :, n:])
        state.counts.index_fill_(0, rows, 1)

    def propose(self, state: EagleState, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        """Catches up with the tokens that the draft model has not seen and drafts a tree behind them."""
        begin, last = lengths - state.counts, state.counts[:, None] - 1  # of those tokens
        hidden = pick_nodes(self._run(state, state.tokens, state.hidden, begin, self._catch_up_places), last)
        if isinstance(self.tree, StaticTree):
            return self._propose_static(state, root, hidden, lengths)
        return self._propose_dynamic(state, root, hidden, lengths)

    def observe(self, state: EagleState, outcome: Outcome, lengths: torch.Tensor) -> None:
        """Keeps what was emitted for the next catch-up."""
        state.tokens.copy_(outcome.emitted)
        state.hidden.copy_(pick_nodes(outcome.scores.hidden, outcome.path))
        torch.add(outcome.num_accepted, 1, out=state.counts)

    def _window(self, visible: torch.Tensor) -> torch.Tensor:
        return window_table(visible, self.dtype)

    def _run(
        self, state: EagleState, tokens: torch.Tensor, hidden: torch.Tensor, begin: torch.Tensor, places: _Places
    ) -> torch.Tensor:
        """One pass over nodes behind image position `begin` of each row: (captions, batch, nodes, dim)."""
        origin = (begin + self.num_text_rows)[:, None]
        rotary_rows = (origin + places.steps).expand(-1, tokens.shape[1])
        mask = state.cache.mask(places.window, origin[:, 0])
        tokens = tokens.clamp(min=0)  # something must run where there is no draft
        return self.draft.extend(state.cache, tokens, hidden, origin + places.slots, rotary_rows, mask)

    def _weights(
        self, state: EagleState, hidden: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(log-weights after the filters, the same with the noise that picks the drafts), each (batch, nodes,
        vocab).
        """
        logits = self.target.guided_logits(hidden, self.sampling.cfg_scale, positions)
        if self.sampling.is_greedy:
            return logits, logits
        weights = filter_logits(logits, self.sampling)
        if self.drafts == "top":
            return weights, weights
        stream = "target" if self.drafts == "coupled" else "draft"
        return weights, weights + state.noise.gumbel(stream, positions)

    def _propose_static(
        self, state: EagleState, root: torch.Tensor, hidden: torch.Tensor, lengths: torch.Tensor
    ) -> Proposal:
        levels, probs = [root], []
        for depth, plan in enumerate(self._levels):
            if depth > 0:
                tokens = levels[-1].index_select(1, plan.tokens)
                hidden = self._run(state, tokens, hidden.index_select(2, plan.parents), lengths, plan.places)
            positions = (lengths + depth)[:, None].expand(-1, hidden.shape[2])
            weights, keys = self._weights(state, hidden, positions)
            if self.drafts == "sampled" or self.keeps_probs:
                probs.append(weights.softmax(-1))
            levels.append(best_codes(keys, plan.width).flatten(1).index_select(1, plan.drafted))
        return Proposal(torch.cat(levels, dim=1), self.tree, torch.cat(probs, dim=1) if probs else None)

    def _propose_dynamic(
        self, state: EagleState, root: torch.Tensor, hidden: torch.Tensor, lengths: torch.Tensor
    ) -> Proposal:
        """Source: EAGLE-2 (arXiv 2406.16858), section 4; jadohu/LANTERN cnets_llamagen.py (topK_genrate)."""
        options: DynamicTreeOptions = self.tree
        k, batch = options.top_k, len(lengths)
        beam = torch.arange(k, device=root.device)
        _, keys = self._weights(state, hidden, lengths[:, None])
        scores, tokens = (column[:, 0] for column in _children(keys, k))  # (batch, k)
        found = [(tokens, scores, torch.full_like(tokens, -1))]  # candidates: token, score, which one is the parent
        candidate = beam.expand(batch, k)  # of the beam's nodes
        hidden = hidden.expand(-1, -1, k, -1)
        visible = torch.zeros(batch, k, options.depth * k, dtype=torch.bool, device=root.device)
        for level in range(options.depth):
            own = (beam + level * k).expand(batch, k)
            visible = visible.scatter(2, own[..., None], True)
            hidden = self._run(state, tokens, hidden, lengths, _Places(own, level, self._window(visible)))
            _, keys = self._weights(state, hidden, (lengths + level + 1)[:, None].expand(-1, k))
            child_scores, child_tokens = _children(keys, k)  # (batch, k, k)
            child_scores, child_tokens = (child_scores + scores[..., None]).flatten(1), child_tokens.flatten(1)
            found.append((child_tokens, child_scores, candidate.repeat_interleave(k, dim=1)))
            scores, best = child_scores.topk(k, dim=1)
            tokens, candidate, parent = child_tokens.gather(1, best), best + k + level * k * k, best // k
            hidden = pick_nodes(hidden, parent)
            visible = visible.gather(1, parent[..., None].expand_as(visible))
        return self._select(root, *(torch.cat(column, dim=1) for column in zip(*found, strict=True)))

    def _select(
        self, root: torch.Tensor, tokens: torch.Tensor, scores: torch.Tensor, parents: torch.Tensor
    ) -> Proposal:
        """Keeps the candidates of highest score, in the order in which they were found.

        A score never exceeds the parent's, and parents are found first: in a stable order they are kept first.
        """
        options: DynamicTreeOptions = self.tree
        best = scores.sort(dim=1, descending=True, stable=True).indices
        kept = best[:, : options.num_nodes].sort(dim=1).values
        parents = parents.gather(1, kept)
        numbers = torch.where(parents < 0, 0, torch.searchsorted(kept, parents.clamp(min=0)) + 1)
        numbers = torch.cat([torch.zeros_like(root), numbers], dim=1)
        tree = tree_from_parents(numbers, self.max_depth, options.top_k)
        return Proposal(torch.cat([root, tokens.gather(1, kept)], dim=1), tree)


def pick_nodes(hidden: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
    """Hidden states (captions, batch, nodes, dim) of some nodes, int64 (batch, n): (captions, batch, n, dim)."""
    return hidden.gather(2, nodes[None, ..., None].expand(len(hidden), -1, -1, hidden.shape[3]))


def _children(keys: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability and token of each node's k best children; -1, as a very improbable one, where there is none."""
    best = keys.log_softmax(-1).topk(k, dim=-1)
    return best.values.clamp(min=-1e3), best.indices.masked_fill(best.values.isneginf(), -1)


@dataclass
class _Places:
    """Where the nodes of one pass stand, relative to the row's first new image token.

    Attributes:
        slots: int64, (nodes,) or (batch, nodes): in the cache.
        steps: in the image; int64 (nodes,), or the same for all nodes.
        window: their attention, see `window_table`.
    """

    slots: torch.Tensor
    steps: torch.Tensor | int
    window: torch.Tensor


@dataclass
class _LevelPlan:
    """How one level of a static tree is drafted; index tensors are int64. Nothing runs for the root's.

    Attributes:
        width: most children of one of the level's inner nodes.
        drafted: the nodes one level deeper among the flattened proposals.
        tokens: the inner nodes among the nodes of their depth.
        parents: their parents among the inner nodes of the depth above.
        places: where they stand.
    """

    width: int
    drafted: torch.Tensor
    tokens: torch.Tensor | None = None
    parents: torch.Tensor | None = None
    places: _Places | None = None


def _plan_levels(tree: StaticTree, make_window: Callable[[torch.Tensor], torch.Tensor]) -> list[_LevelPlan]:
    plans = [_LevelPlan(*part) for part in zip(tree.level_children, tree.drafted, strict=True)]
    for depth, (plan, nodes) in enumerate(zip(plans[1:], tree.levels[1:], strict=True), start=1):
        plan.tokens = nodes - int((tree.depths[0] < depth).sum())
        plan.parents = torch.searchsorted(tree.levels[depth - 1], tree.parents[0, nodes])
        window = make_window(tree.ancestors[:, nodes][:, :, tree.parent_nodes[1:]])
        plan.places = _Places(tree.inner_ordinal[nodes], depth - 1, window)
    return plans
