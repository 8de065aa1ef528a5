"""SJD, SCD, SJD++ and SJD-PAC, whose drafts are sampled from the target's distributions of the previous step.

The *window* is a fixed number of positions after the last emitted token. Every position in the window has a draft x and
a *draft distribution* p, which the draft was sampled from: the target's distribution t at that position in the previous
step, given the drafts of that step. Since it is known, the draft can be verified by rejection sampling, like a draft of
a draft model.

The decoding is exact, except in SJD++: the emitted tokens follow the target's distribution. The reason is that drafts
are sampled and verified with independent noise. A draft therefore follows its draft distribution, whatever tokens were
emitted before its position.

Sources: speculative Jacobi decoding, SJD (arXiv 2410.01699; tyshiwo1/Accelerating-T2I-AR-with-SJD@b389cfb); speculative
coupled decoding, SCD or MC-SJD (arXiv 2510.24211; junhyukso/SCD@7322379); SJD++ (arXiv 2512.07503), as in
Haodong-Lei-Ray/PathSpec@8a3df48; SJD-PAC (arXiv 2603.18599), whose public code is not exact (docs/methods.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from typing_extensions import override

from lantern.acceptance.rejection import Rejection
from lantern.draft_tree import StaticTree, first_ranks, static_tree
from lantern.drafters.base import Drafter
from lantern.drafters.jacobi import JacobiDrafter, random_drafts
from lantern.methods import MethodSpec
from lantern.models.config import TargetConfig
from lantern.noise import DRAFT, NoiseField, Stream, Uniform
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels
from lantern.step import Outcome, Prefill, Proposal, pick_rows


@dataclass
class SpeculativeJacobiState:
    """The first children of each depth of the window. Entries from `counts` on have no meaning."""

    noise: NoiseField
    drafts: torch.Tensor  # int64 (batch, window)
    draft_probs: torch.Tensor  # (batch, window, vocab)
    counts: torch.Tensor  # number of positions of the window that have a draft, int64 (batch, 1)


class SpeculativeJacobiDrafter(Drafter[SpeculativeJacobiState]):
    """The drafter for temperatures above 0.

    After every step, each position of the window gets a new draft, which may equal the old one x. The method has three
    parameters:

    - `coupling`: how the new draft depends on x. "none" samples it independently. "gumbel" samples it with noise that
      depends only on the position. "maximal" keeps x with the largest possible probability.
    - `threshold` (SJD++): x is kept if t(x) / p(x) is larger than the threshold. None switches this off.
    - `labels`: the draft distribution of the first draft of a position, which is a random code. "point" is a point mass
      at this code, "uniform" is uniform over all codes.

    Decoding is exact with every coupling, but not with a threshold: a draft that this keeps was not sampled from its
    new draft distribution.

    Args:
        tree: the first child of a node is the draft of its position. Further siblings are sampled from the same draft
            distribution without replacement. The n-th child is the same token for all parents of one depth.
    """

    tree: StaticTree

    def __init__(self, tree: StaticTree, spec: MethodSpec, config: TargetConfig) -> None:
        self.tree = tree
        self.max_depth = tree.max_depth
        self.config = config
        self.coupling: str = spec.get("coupling") or "none"
        self.threshold: float | None = spec.get("threshold")
        # Within a line, a random draft is a code, never the line end.
        codes = torch.arange(config.vocab_size, device=tree.parents.device) < config.num_codes
        self._rejection = Rejection()
        self._first_probs = codes / config.num_codes if spec.get("labels") == "uniform" else None
        self._chain = first_ranks(tree)  # the root, then the node of each position's first draft
        # A proposal has one draft distribution per inner node. Chain node d is inner node number _chain_inner[d].
        self._chain_inner = torch.searchsorted(tree.parent_nodes, self._chain[:-1])
        self._inner_depths = tree.depths[0, tree.parent_nodes]  # the children of depth d are draft d of the window
        self._steps = torch.arange(self.max_depth + 1, device=tree.parents.device)[None]
        self.num_siblings = int(tree.ranks.max()) + 1
        self._num_wide = int(tree.depths[tree.ranks > 0].max()) if self.num_siblings > 1 else 0  # depths with siblings
        # Index of the token of each node, without the root, among the drafts of all ranks, one rank after the other.
        self._candidate = (tree.ranks * self.max_depth + tree.depths - 1)[:, 1:]
        # Slots are numbered by depth: a position has another depth in every step, so that no number is read twice.
        self._initial_noise = Uniform("initial", self.max_depth + 1)
        self._redraw_noise = Uniform("redraw", self.max_depth + 1)
        self._keep_noise = Uniform("keep", self.max_depth + 1)
        self._sibling_noise = Uniform("sibling", self._num_wide * self.num_siblings)
        streams: list[Stream] = [self._initial_noise, DRAFT if self.coupling == "gumbel" else self._redraw_noise]
        if self.coupling == "maximal":
            streams.append(self._keep_noise)
        if self.num_siblings > 1:
            streams.append(self._sibling_noise)
        self.noise_streams = tuple(streams)

    @classmethod
    @override
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> Drafter:
        tree = static_tree(spec.static_choices, models.target.device)
        # At temperature 0 a sample of the previous step's distribution is its most probable code.
        if sampling.is_greedy:
            return JacobiDrafter(tree, models.target.config, num_kept=1)
        return cls(tree, spec, models.target.config)

    @override
    def allocate(self, num_rows: int, noise: NoiseField) -> SpeculativeJacobiState:
        device = self.tree.parents.device
        window = self.max_depth
        return SpeculativeJacobiState(
            noise=noise,
            drafts=torch.zeros(num_rows, window, dtype=torch.int64, device=device),
            draft_probs=torch.zeros(num_rows, window, self.config.vocab_size, device=device),
            counts=torch.zeros(num_rows, 1, dtype=torch.int64, device=device),
        )

    @override
    def fill(self, state: SpeculativeJacobiState, rows: torch.Tensor, prefill: Prefill) -> None:
        state.counts.index_fill_(0, rows, 0)

    @override
    def propose(self, state: SpeculativeJacobiState, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        positions = lengths[:, None] + self._steps[:, :-1]
        is_new = self._steps[:, :-1] >= state.counts
        first, first_probs = self._begin(state, positions)
        drafts = torch.where(is_new, first, state.drafts)
        draft_probs = torch.where(is_new[..., None], first_probs, state.draft_probs)
        # One (batch, window) per rank. Nodes of the same depth and rank share a draft.
        candidates = [drafts, *self._sample_siblings(state.noise, drafts, draft_probs, positions)]
        tokens = torch.cat(candidates, dim=1).gather(1, self._candidate.expand(len(root), -1))
        return Proposal(torch.cat([root, tokens], dim=1), self.tree, draft_probs.index_select(1, self._inner_depths))

    @override
    def observe(self, state: SpeculativeJacobiState, outcome: Outcome, lengths: torch.Tensor) -> None:
        probs = outcome.scores.weights.index_select(1, self._chain).softmax(-1)
        tokens = self._resample(state.noise, outcome, probs)
        # Node d of the chain predicts d positions ahead, and the step emits num_accepted + 1 tokens.
        rows = outcome.num_accepted[:, None] + 1 + self._steps[:, :-1]
        # Positions after the last node have no draft, as `counts` says: of the window + 1 nodes, num_accepted + 1
        # predicted emitted tokens.
        rows = rows.clamp(max=self.max_depth)
        state.drafts.copy_(tokens.gather(1, rows))
        state.draft_probs.copy_(pick_rows(probs, rows))
        torch.sub(self.max_depth, outcome.num_accepted[:, None], out=state.counts)

    def _begin(self, state: SpeculativeJacobiState, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a random first draft for each position of the window, and its draft distribution."""
        drafts = random_drafts(state.noise, self._initial_noise, self.config, positions, self._steps[:, :-1])
        is_end = self.config.ends_line(positions)
        # A point mass at the draft: at line ends always, else unless `labels` is "uniform".
        draft_probs = torch.zeros_like(state.draft_probs).scatter_(-1, drafts[..., None], 1.0)
        if self._first_probs is not None:
            draft_probs = torch.where(is_end[..., None], draft_probs, self._first_probs)
        return drafts, draft_probs

    def _sample_siblings(
        self, noise: NoiseField, drafts: torch.Tensor, draft_probs: torch.Tensor, positions: torch.Tensor
    ) -> Iterator[torch.Tensor]:
        """Yield the second draft of every position, or -1 if it is missing, then the third, each (batch, window)."""
        wide = slice(0, self._num_wide)
        # The probabilities of the codes that are not sampled yet, (batch, depths with siblings, vocab), not normalised.
        remaining = draft_probs[:, wide].scatter(-1, drafts[:, wide, None], 0.0)
        for rank in range(1, self.num_siblings):
            slots = self._steps[:, wide] * self.num_siblings + rank
            token = noise.sample(self._sibling_noise, remaining, positions[:, wide], slots)
            # If nothing remains, `sample` returns a code of probability 0: this sibling is missing.
            token = token.masked_fill(remaining.gather(-1, token[..., None]).squeeze(-1) == 0, -1)
            yield F.pad(token, (0, self.max_depth - self._num_wide))  # no node reads the padding
            # If a token is missing, all probabilities are 0 already, and nothing changes.
            remaining = remaining.scatter(-1, token.clamp(min=0)[..., None], 0.0)

    def _resample(self, noise: NoiseField, outcome: Outcome, probs: torch.Tensor) -> torch.Tensor:
        """Return new drafts for the position after each node of the chain of first siblings, int64 (batch, window + 1).

        `probs` are the target distributions after these nodes, the draft distributions of the new drafts.
        """
        positions = outcome.scores.positions.index_select(1, self._chain)
        if self.coupling == "gumbel":
            # Noise that stays the same from step to step: similar distributions give the same code.
            weights = outcome.scores.weights.index_select(1, self._chain)
            return (weights + noise.gumbel(DRAFT, positions)).argmax(-1)
        # Independent of the old drafts.
        if (self.coupling, self.threshold) == ("none", None):
            return noise.sample(self._redraw_noise, probs, positions, self._steps)
        drafts = outcome.proposal.tokens.index_select(1, self._chain[1:])
        assert outcome.proposal.draft_probs is not None
        draft_probs = outcome.proposal.draft_probs.index_select(1, self._chain_inner)
        is_kept, residual = self._keep(noise, probs[:, :-1], drafts, draft_probs, positions[:, :-1])
        residual = torch.cat([residual, probs[:, -1:]], dim=1)  # the position after the last node had no draft
        sampled = noise.sample(self._redraw_noise, residual, positions, self._steps)
        return torch.where(F.pad(is_kept, (0, 1)), F.pad(drafts, (0, 1)), sampled)

    def _keep(
        self,
        noise: NoiseField,
        probs: torch.Tensor,
        drafts: torch.Tensor,
        draft_probs: torch.Tensor,
        positions: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return which drafts are kept, bool (batch, window), and the distributions of what replaces the others."""
        # SJD++ samples a draft that it does not keep from t itself, not from the residual.
        if self.threshold is not None:
            target_prob = probs.gather(-1, drafts[..., None]).squeeze(-1)
            draft_prob = draft_probs.gather(-1, drafts[..., None]).squeeze(-1)
            return target_prob > self.threshold * draft_prob, probs
        # A maximal coupling of p and t: the rejection test of verification, with noise of its own. x is kept with
        # probability min(1, t(x) / p(x)), and the new draft has the distribution t.
        uniforms = noise.fresh(self._keep_noise, positions, self._steps[:, :-1])[..., None]
        rank, residual = self._rejection.accept(probs, drafts[..., None], draft_probs, uniforms)
        return rank == 0, residual
