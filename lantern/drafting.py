"""How the draft model fills a tree: the catch-up pass over newly accepted tokens, then one pass per level of the tree.

Drafts are "top" (the most probable tokens), "sampled" (without replacement, with noise of their own) or "coupled"
(with the very noise by which the target will draw, so that both tend to pick the same token). At temperature 0 all
three are "top".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lantern.attention_mask import additive, prefix_mask, slide_window, window_table
from lantern.draft_tree import DraftTree, StaticTree, tree_from_parents
from lantern.models.draft import DraftModel
from lantern.models.target import TargetModel
from lantern.models.transformer import OVERSHOOT
from lantern.noise import NoiseField
from lantern.sampling import SamplingConfig, filter_logits, guide

_LEVEL_COST = 1e-6  # nats per level: breaks ties so that a parent always outranks its children


@dataclass(frozen=True)
class DynamicTreeOptions:
    """Shape of a dynamic tree (EAGLE-2).

    Args:
        num_nodes: drafted nodes kept for verification, root not counted.
        depth: passes of the draft model after the first; paths are up to depth + 1 drafts long.
        top_k: beam width, and children tried per beam node.

    Raises:
        ValueError: a value below 1, or more nodes than are drafted.
    """

    num_nodes: int = 58
    depth: int = 4
    top_k: int = 10

    def __post_init__(self) -> None:
        for name in ("num_nodes", "depth", "top_k"):
            if getattr(self, name) < 1:
                raise ValueError(f"draft_tree.dynamic.{name} must be >= 1, got {getattr(self, name)}")
        drafted = self.top_k + self.depth * self.top_k**2
        if self.num_nodes > drafted:
            raise ValueError(
                f"draft_tree.dynamic.num_nodes must be <= top_k + depth top_k^2 = {drafted}, got {self.num_nodes}"
            )


@dataclass
class PendingTokens:
    """Tokens that the target has emitted and the draft model has not seen.

    Attributes:
        tokens: int64, (batch, most at once); the first `counts` count.
        hidden: (rows, most at once, dim): the target's hidden states that predicted them; guidance rows included.
        counts: int64, (batch,), >= 1.
    """

    tokens: torch.Tensor
    hidden: torch.Tensor
    counts: torch.Tensor


@dataclass
class Drafts:
    """A filled tree.

    Attributes:
        tokens: int64, (batch, nodes), root included.
        tree: its structure.
        draft_probs: what each node's children were drawn from, (batch, inner, vocab); None unless they were sampled.
    """

    tokens: torch.Tensor
    tree: DraftTree
    draft_probs: torch.Tensor | None = None


class TreeDrafter:
    """Drafts trees for a batch of images.

    Args:
        draft: the draft model.
        target: the target model, for its head and its layout.
        drafts: "top", "sampled" or "coupled".
        tree: the static tree, or options of the dynamic one.
        sampling: the target's temperature, filters and guidance, which the draft model shares.
    """

    def __init__(
        self,
        draft: DraftModel,
        target: TargetModel,
        drafts: str,
        tree: StaticTree | DynamicTreeOptions,
        sampling: SamplingConfig,
    ) -> None:
        self.draft, self.read_logits, self.sampling = draft, target.read_logits, sampling
        self.drafts = "top" if sampling.is_greedy else drafts
        self.tree = tree
        self.num_text_rows = target.config.num_text_tokens - 1
        self.num_image_tokens = target.config.num_image_tokens
        is_static = isinstance(tree, StaticTree)
        self.max_depth = tree.max_depth if is_static else tree.depth + 1
        if self.max_depth > OVERSHOOT:
            raise ValueError(
                f"a draft tree must be at most {OVERSHOOT} drafts deep, got {self.max_depth}; choose a shallower tree"
            )
        num_inner = len(tree.parent_nodes) - 1 if is_static else tree.depth * tree.top_k
        self.num_slots = self.num_text_rows + self.num_image_tokens + max(self.max_depth + 1, num_inner) + 1
        self.device, self.dtype = target.device, target.dtype
        self._steps = torch.arange(self.max_depth + 1, device=self.device)
        lower = torch.ones(1, self.max_depth + 1, self.max_depth + 1, dtype=torch.bool, device=self.device).tril_()
        self._catch_up_window = window_table(lower, self.num_slots, self.dtype)
        self._levels = _plan_levels(tree, self.num_slots, self.dtype) if is_static else []

    def start(self, text_hidden: torch.Tensor, text_mask: torch.Tensor, noise: NoiseField) -> None:
        """Begins a batch of images with the target's hidden states of the caption.

        Args:
            text_hidden: (rows, num_text_tokens, dim).
            text_mask: bool, (rows, num_text_tokens), True where a caption token is.
            noise: of the images.
        """
        rows, n = text_hidden.shape[0], self.num_text_rows
        batch = len(noise.prompt_ids)
        self.noise = noise
        self.cache = self.draft.new_cache(rows, self.num_slots)
        visible = text_mask[:, :n] if self.draft.config.masks_text_padding else torch.ones_like(text_mask[:, :n])
        self._text_bias = torch.nn.functional.pad(additive(visible, self.dtype), (0, self.num_slots - n))[:, None, None]
        slots = torch.arange(n, device=self.device).expand(batch, n)
        mask = prefix_mask(visible, n, self.dtype)
        mask = torch.nn.functional.pad(mask, (0, self.num_slots - n), value=float("-inf"))
        self.cache.place(slots)
        self.draft.run_cached(torch.zeros_like(slots), text_hidden[:, :n], slots, mask, self.cache)

    def grow(self, pending: PendingTokens, lengths: torch.Tensor) -> Drafts:
        """Catches up with the emitted tokens and drafts a tree behind them.

        Args:
            pending: emitted since the last call; the last one becomes the root.
            lengths: int64, (batch,): image tokens emitted so far.

        Returns:
            The filled tree.
        """
        hidden = self._catch_up(pending, lengths)
        root = pending.tokens.gather(1, pending.counts[:, None] - 1)
        if isinstance(self.tree, StaticTree):
            return self._grow_static(root, hidden, lengths)
        return self._grow_dynamic(root, hidden, lengths)

    def _catch_up(self, pending: PendingTokens, lengths: torch.Tensor) -> torch.Tensor:
        begin = lengths - pending.counts  # (batch,): first pending token
        hidden = self._run(pending.tokens, pending.hidden, begin, self._steps, self._steps, self._catch_up_window)
        last = (pending.counts - 1).repeat(hidden.shape[0] // len(lengths))
        return hidden.gather(1, last[:, None, None].expand(-1, 1, hidden.shape[2]))  # (rows, 1, dim)

    def _run(
        self,
        tokens: torch.Tensor,
        hidden: torch.Tensor,
        begin: torch.Tensor,
        slots: torch.Tensor,
        steps: torch.Tensor | int,
        window: torch.Tensor,
    ) -> torch.Tensor:
        """One pass: nodes at the given slots and grid steps behind `begin` (both relative to it)."""
        origin = (begin + self.num_text_rows)[:, None]
        self.cache.place(origin + slots)
        rotary_rows = (origin + steps).expand(-1, tokens.shape[1])
        mask = slide_window(window, origin[:, 0], self.num_slots)[:, None]
        mask = mask.repeat(hidden.shape[0] // len(begin), 1, 1, 1) + self._text_bias
        return self.draft.run_cached(tokens, hidden, rotary_rows, mask, self.cache)

    def _weights(self, hidden: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(log-weights after the filters, the same with the noise that picks the drafts), each (batch, nodes,
        vocab).
        """
        guided = guide(hidden, self.sampling.cfg_scale) if self.sampling.is_guided else hidden
        logits = self.read_logits(guided)
        if self.sampling.is_greedy:
            return logits, logits
        weights = filter_logits(logits, self.sampling)
        if self.drafts == "top":
            return weights, weights
        stream = "target" if self.drafts == "coupled" else "draft"
        return weights, weights + self.noise.gumbel(stream, positions)

    def _grow_static(self, root: torch.Tensor, hidden: torch.Tensor, lengths: torch.Tensor) -> Drafts:
        levels, probs = [root], []
        for depth, plan in enumerate(self._levels):
            if depth > 0:
                tokens = levels[-1].index_select(1, plan.tokens)
                hidden = self._run(
                    tokens, hidden.index_select(1, plan.parents), lengths, plan.slots, depth - 1, plan.window
                )
            positions = (lengths + depth)[:, None].expand(-1, hidden.shape[1])
            weights, keys = self._weights(hidden, positions)
            if self.drafts == "sampled":
                probs.append(weights.softmax(-1))
            best = (
                keys.argmax(-1, keepdim=True)
                if plan.num_children == 1
                else keys.topk(plan.num_children, dim=-1).indices
            )
            levels.append(best.flatten(1).index_select(1, plan.drafted))
        return Drafts(torch.cat(levels, dim=1), self.tree, torch.cat(probs, dim=1) if probs else None)

    def _grow_dynamic(self, root: torch.Tensor, hidden: torch.Tensor, lengths: torch.Tensor) -> Drafts:
        """Source: EAGLE-2 (arXiv 2406.16858), section 4; jadohu/LANTERN cnets_llamagen.py (topK_genrate)."""
        options: DynamicTreeOptions = self.tree
        k, batch = options.top_k, len(lengths)
        beam = torch.arange(k, device=self.device)
        _, keys = self._weights(hidden, lengths[:, None])
        scores, tokens = _children(keys, k)
        scores, tokens = scores[:, 0] - _LEVEL_COST, tokens[:, 0]  # (batch, k)
        found = [
            (tokens, scores, torch.full_like(tokens, -1))
        ]  # candidates: token, score, candidate that is their parent
        place = beam.expand(batch, k)  # of the beam's nodes among the candidates
        hidden = hidden.expand(-1, k, -1)
        visible = torch.zeros(batch, k, options.depth * k, dtype=torch.bool, device=self.device)
        num_found = k
        for level in range(options.depth):
            own = (beam + level * k).expand(batch, k)
            visible = visible.scatter(2, own[..., None], True)
            window = window_table(visible, self.num_slots, self.dtype)
            hidden = self._run(tokens, hidden, lengths, own, level, window)
            _, keys = self._weights(hidden, (lengths + level + 1)[:, None].expand(-1, k))
            child_scores, child_tokens = _children(keys, k)  # (batch, k, k)
            child_scores = (child_scores + scores[..., None] - _LEVEL_COST).flatten(1)
            child_tokens = child_tokens.flatten(1)
            found.append((child_tokens, child_scores, place.repeat_interleave(k, dim=1)))
            scores, best = child_scores.topk(k, dim=1)
            tokens, place, parent = child_tokens.gather(1, best), best + num_found, best // k
            num_found += k * k
            rows = parent.repeat(hidden.shape[0] // batch, 1)
            hidden = hidden.gather(1, rows[..., None].expand(-1, -1, hidden.shape[2]))
            visible = visible.gather(1, parent[..., None].expand_as(visible))
        return self._select(root, *(torch.cat(column, dim=1) for column in zip(*found, strict=True)))

    def _select(self, root: torch.Tensor, tokens: torch.Tensor, scores: torch.Tensor, parents: torch.Tensor) -> Drafts:
        """Keeps the candidates of highest score, in the order in which they were found."""
        options: DynamicTreeOptions = self.tree
        kept = scores.topk(options.num_nodes, dim=1).indices.sort(dim=1).values
        parents = parents.gather(1, kept)
        numbers = torch.where(parents < 0, 0, torch.searchsorted(kept, parents.clamp(min=0)) + 1)
        numbers = torch.cat([torch.zeros_like(root), numbers], dim=1)
        tree = tree_from_parents(numbers, self.max_depth, options.top_k)
        return Drafts(torch.cat([root, tokens.gather(1, kept)], dim=1), tree)


def _children(keys: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability and token of each node's k best children; a filtered-out token counts as very improbable."""
    best = keys.log_softmax(-1).topk(k, dim=-1)
    return best.values.clamp(min=-1e3), best.indices


@dataclass
class _LevelPlan:
    """How one level of a static tree is drafted; index tensors are int64.

    Attributes:
        tokens: the level's inner nodes among the nodes of their depth.
        parents: their parents among the inner nodes of the depth above.
        slots: their slots behind the root.
        window: their attention, see `window_table`.
        num_children: most children of one of them.
        drafted: the nodes one level deeper among the flattened proposals.
    """

    tokens: torch.Tensor | None
    parents: torch.Tensor | None
    slots: torch.Tensor | None
    window: torch.Tensor | None
    num_children: int
    drafted: torch.Tensor


def _plan_levels(tree: StaticTree, num_slots: int, dtype: torch.dtype) -> list[_LevelPlan]:
    plans = []
    for depth, nodes in enumerate(tree.levels):
        drafted, num_children = tree.drafted[depth], tree.level_children[depth]
        if depth == 0:
            plans.append(_LevelPlan(None, None, None, None, num_children, drafted))
            continue
        first = int((tree.depths[0] < depth).sum())
        parents = torch.searchsorted(tree.levels[depth - 1], tree.parents[0, nodes])
        visible = tree.ancestors[:, nodes][:, :, tree.parent_nodes[1:]]
        window = window_table(visible, num_slots, dtype)
        plans.append(_LevelPlan(nodes - first, parents, tree.inner_ordinal[nodes], window, num_children, drafted))
    return plans
