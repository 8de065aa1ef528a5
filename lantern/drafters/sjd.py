"""Speculative Jacobi drafts: drawn from the target's distributions of the step before, and verified by rejection.

Every position ahead holds a draft and its *label*, the distribution that it was drawn from: the target's at that
position in the last step, behind the drafts of that step. With the label the draft is verified as a draft model's would
be, by the same rejection. What a draft is drawn with belongs to its position and to the step, and what it is verified
with to its position alone: then a draft has the distribution of its label, given all that the target's depends on, and
the emitted tokens have the target's distribution.

Sources: speculative Jacobi decoding, SJD (arXiv 2410.01699; tyshiwo1/Accelerating-T2I-AR-with-SJD@b389cfb); speculative
coupled decoding, SCD or MC-SJD (arXiv 2510.24211; junhyukso/SCD@7322379); SJD++ (arXiv 2512.07503), as in
Haodong-Lei-Ray/PathSpec@8a3df48; SJD-PAC (arXiv 2603.18599), whose public code is not exact (docs/methods.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from lantern.acceptance.rejection import Rejection
from lantern.decoding_state import DecodingModels
from lantern.draft_tree import StaticTree, first_ranks, static_tree
from lantern.drafters.base import Drafter
from lantern.drafters.jacobi import JacobiDrafter
from lantern.methods import MethodSpec
from lantern.models.config import TargetConfig
from lantern.noise import NoiseField
from lantern.sampling import SamplingConfig
from lantern.step import Outcome, Prefill, Proposal, pick_rows
from lantern.tree_shapes import MAX_SIBLINGS


@dataclass
class SpeculativeJacobiState:
    """What a speculative Jacobi drafter keeps of a batch of images; window position 0 is behind the last token emitted.

    Attributes:
        noise: of the images.
        drafts: int64, (batch, window): of the positions ahead; the first `counts` count.
        labels: (batch, window, vocab): what they were drawn from.
        counts: int64, (batch, 1): positions that have a draft.
    """

    noise: NoiseField
    drafts: torch.Tensor
    labels: torch.Tensor
    counts: torch.Tensor


class SpeculativeJacobiDrafter(Drafter):
    """Drafts what the target's distributions of the step before give; for temperatures above 0.

    Exact with every coupling, but not with a `threshold` (SJD++): it keeps drafts that are no samples of the label that
    they get.

    Args:
        tree: its depth is the window. Of siblings the first is the draft of the position, the others are drawn from its
            label without replacement, the same ones behind every token before.
        spec: `coupling`, how drafts follow those of the step before: "none" draws them anew, "gumbel" with the noise of
            their position, "maximal" keeps as many as can be; `threshold`, the t(x) / p(x) above which SJD++ keeps one;
            `labels`, what the random first drafts count as drawn from: "point", of no choice, or "uniform".
        config: of the target; its codes, and the width of a line of the image.

    Raises:
        ValueError: siblings at too many depths.
    """

    def __init__(self, tree: StaticTree, spec: MethodSpec, config: TargetConfig) -> None:
        self.tree, self.max_depth, self.config = tree, tree.max_depth, config
        self.coupling, self.threshold = spec.coupling or "none", spec.threshold
        self.noise_streams = (
            "initial",
            "draft" if self.coupling == "gumbel" else "redraw",
            *(["keep"] if self.coupling == "maximal" else []),
            *(["sibling"] if tree.ranks.any() else []),
        )
        codes = torch.arange(config.vocab_size, device=tree.parents.device) < config.num_codes
        self._rejection = Rejection()
        self._first_label = codes / config.num_codes if spec.labels == "uniform" else None
        self._chain = first_ranks(tree)  # nodes of the positions' first drafts, behind the root
        self._chain_inner = torch.searchsorted(tree.parent_nodes, self._chain[:-1])
        self._inner_depths = tree.depths[0, tree.parent_nodes]
        self._steps = torch.arange(self.max_depth + 1, device=tree.parents.device)[None]
        self.num_siblings = int(tree.ranks.max()) + 1
        self._num_wide = int(tree.depths[tree.ranks > 0].max()) if self.num_siblings > 1 else 0  # depths with siblings
        self._candidate = (tree.ranks * self.max_depth + tree.depths - 1)[:, 1:]  # of each node but the root
        if self._num_wide * self.num_siblings > MAX_SIBLINGS:
            raise ValueError(
                f"siblings x depths that have some must be at most {MAX_SIBLINGS} for sjd drafts, got "
                f"{self.num_siblings} x {self._num_wide}; choose another tree"
            )

    @classmethod
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> Drafter:
        """At temperature 0 drafts are the most probable tokens of the last step, which Jacobi drafts are too."""
        if sampling.is_greedy:
            tree = static_tree(spec.tree_shape, models.target.device)
            return JacobiDrafter(tree, models.target.config, num_kept=1)
        return cls(static_tree(spec.tree_shape, models.target.device), spec, models.target.config)

    def allocate(self, num_rows: int, noise: NoiseField) -> SpeculativeJacobiState:
        """See `Drafter`."""
        device, window = self.tree.parents.device, self.max_depth
        return SpeculativeJacobiState(
            noise=noise,
            drafts=torch.zeros(num_rows, window, dtype=torch.int64, device=device),
            labels=torch.zeros(num_rows, window, self.config.vocab_size, device=device),
            counts=torch.zeros(num_rows, 1, dtype=torch.int64, device=device),
        )

    def fill(self, state: SpeculativeJacobiState, rows: torch.Tensor, prefill: Prefill) -> None:
        """Forgets the drafts of the old prompts."""
        state.counts.index_fill_(0, rows, 0)

    def propose(self, state: SpeculativeJacobiState, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        """The drafts of the positions behind the root, and random ones where there is none."""
        positions = lengths[:, None] + self._steps[:, :-1]
        is_new = self._steps[:, :-1] >= state.counts
        first, first_labels = self._begin(state, positions)
        drafts = torch.where(is_new, first, state.drafts)
        labels = torch.where(is_new[..., None], first_labels, state.labels)
        candidates = [drafts, *self._draw_siblings(state.noise, drafts, labels, positions)]
        tokens = torch.cat(candidates, dim=1).gather(1, self._candidate.expand(len(root), -1))
        return Proposal(torch.cat([root, tokens], dim=1), self.tree, labels.index_select(1, self._inner_depths))

    def observe(self, state: SpeculativeJacobiState, outcome: Outcome, lengths: torch.Tensor) -> None:
        """Draws the drafts behind what was emitted anew."""
        probs = outcome.scores.weights.index_select(1, self._chain).softmax(-1)
        tokens = self._redraw(state.noise, outcome, probs)
        places = outcome.num_accepted[:, None] + 1 + self._steps[:, :-1]
        places = places.clamp(max=self.max_depth)  # those behind the last row have no draft yet
        state.drafts.copy_(tokens.gather(1, places))
        state.labels.copy_(pick_rows(probs, places))
        torch.sub(self.max_depth, outcome.num_accepted[:, None], out=state.counts)

    def _begin(self, state: SpeculativeJacobiState, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """First drafts of all positions, (batch, window), and their labels, (batch, window, vocab)."""
        noise = state.noise.fresh("initial", positions, self._steps[:, :-1])
        drafts = (noise.double() * self.config.num_codes).long()
        is_end = self.config.ends_line(positions)  # where one token is possible
        drafts = torch.where(is_end, self.config.num_codes, drafts)
        labels = torch.zeros_like(state.labels).scatter_(-1, drafts[..., None], 1.0)
        if self._first_label is not None:
            labels = torch.where(is_end[..., None], labels, self._first_label)
        return drafts, labels

    def _draw_siblings(
        self, noise: NoiseField, drafts: torch.Tensor, labels: torch.Tensor, positions: torch.Tensor
    ) -> Iterator[torch.Tensor]:
        """Further drafts of the first positions, int64 (batch, window), -1 where no more are left; one per rank."""
        wide = slice(0, self._num_wide)
        left = labels[:, wide].scatter(-1, drafts[:, wide, None], 0.0)  # what they are drawn from
        for rank in range(1, self.num_siblings):
            slots = self._steps[:, wide] * self.num_siblings + rank
            token = noise.draw("sibling", left, positions[:, wide], slots)
            token = token.masked_fill(left.gather(-1, token[..., None]).squeeze(-1) == 0, -1)
            yield F.pad(token, (0, self.max_depth - self._num_wide))
            left = left.scatter(-1, token.clamp(min=0)[..., None], 0.0)

    def _redraw(self, noise: NoiseField, outcome: Outcome, probs: torch.Tensor) -> torch.Tensor:
        """New drafts behind all nodes of the chain, int64 (batch, window + 1); their labels are `probs`."""
        positions = outcome.positions.index_select(1, self._chain)
        if self.coupling == "gumbel":
            weights = outcome.scores.weights.index_select(1, self._chain)
            return (weights + noise.gumbel("draft", positions)).argmax(-1)
        if (self.coupling, self.threshold) == ("none", None):
            return noise.draw("redraw", probs, positions, self._steps)
        drafts = outcome.proposal.tokens.index_select(1, self._chain[1:])
        labels = outcome.proposal.draft_probs.index_select(1, self._chain_inner)
        is_kept, left = self._keep(noise, probs[:, :-1], drafts, labels, positions[:, :-1])
        drawn = noise.draw("redraw", torch.cat([left, probs[:, -1:]], dim=1), positions, self._steps)
        return torch.where(F.pad(is_kept, (0, 1)), F.pad(drafts, (0, 1)), drawn)  # the last row has no draft

    def _keep(
        self,
        noise: NoiseField,
        probs: torch.Tensor,
        drafts: torch.Tensor,
        labels: torch.Tensor,
        positions: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Whether drafts are kept, (batch, window), and what the others are drawn from, (batch, window, vocab)."""
        if self.threshold is not None:
            target, draft = (part.gather(-1, drafts[..., None]).squeeze(-1) for part in (probs, labels))
            return target > self.threshold * draft, probs
        uniforms = noise.fresh("keep", positions, self._steps[:, :-1])[..., None]
        rank, residual = self._rejection.accept(probs, drafts[..., None], labels, uniforms)
        return rank == 0, residual
