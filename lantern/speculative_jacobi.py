"""Speculative Jacobi drafts: drawn from the target's distributions of the step before, and judged by rejection.

Every place ahead holds a draft and its *label*, the distribution that it was drawn from: the target's at that place in
the last step, behind the drafts of that step. By the label the draft is judged as a draft model's would be, so that the
rule of sampled drafts serves. What a draft is drawn with belongs to its place and to the step, and what it is judged
with to its place alone: then a draft has the distribution of its label, given all that the target's depends on, and the
emitted tokens have the target's distribution.

Sources: speculative Jacobi decoding, SJD (arXiv 2410.01699; tyshiwo1/Accelerating-T2I-AR-with-SJD@b389cfb); speculative
coupled decoding, SCD or MC-SJD (arXiv 2510.24211; junhyukso/SCD@7322379); SJD++ (arXiv 2512.07503), as in
Haodong-Lei-Ray/PathSpec@8a3df48; SJD-PAC (arXiv 2603.18599; KangJialiang/SJD-PAC@4fbc099).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from lantern.acceptance import RejectionRule, accept_by_rejection
from lantern.draft_tree import StaticTree, first_ranks
from lantern.drafting import Prefill, Proposal
from lantern.methods import MethodSpec
from lantern.models.config import TargetConfig
from lantern.noise import NoiseField
from lantern.tree_shapes import MAX_SIBLINGS
from lantern.verification import pick_rows

if TYPE_CHECKING:
    from lantern.verification import Outcome


@dataclass
class SpeculativeJacobiState:
    """What a speculative Jacobi drafter keeps of a batch of images; place 0 is the one behind the last token emitted.

    Attributes:
        noise: of the images.
        drafts: int64, (batch, window): of the places ahead; the first `counts` count.
        labels: (batch, window, vocab): what they were drawn from.
        counts: int64, (batch, 1): places that have a draft.
        likely: int64, (batch, 1): the most probable token of the place in front of the first without a draft.
        leftovers: (batch, places with siblings, vocab): what "public_tree" draws siblings from; no places elsewhere.
    """

    noise: NoiseField
    drafts: torch.Tensor
    labels: torch.Tensor
    counts: torch.Tensor
    likely: torch.Tensor
    leftovers: torch.Tensor


class SpeculativeJacobiDrafter:
    """Drafts what the target's distributions of the step before give; for temperatures above 0.

    Exact with every coupling, but not with a relaxation: "threshold" keeps drafts that are no draws from the label that
    they get, "public_labels" leaves a draft its old label where it was kept as a draw from the new one, "public_tree"
    draws siblings from what a rejection leaves and labels them as their place, see `lantern.rules.LongestPath`, too.

    Args:
        tree: its depth is the window. Of siblings the first is the draft of the place, the others are drawn from its
            label without replacement, the same ones behind every token before.
        spec: coupling, initial drafts and labels.
        config: of the target; its codes, and the width of a line of the image.

    Raises:
        ValueError: siblings at too many depths.
    """

    def __init__(self, tree: StaticTree, spec: MethodSpec, config: TargetConfig) -> None:
        self.tree, self.max_depth, self.spec = tree, tree.max_depth, spec
        self.vocab_size, self.config = config.vocab_size, config
        self.noise_streams = (
            "initial",
            "draft" if spec.coupling == "gumbel" else "redraw",
            *(["keep"] if spec.coupling == "maximal" else []),
            *(["sibling"] if tree.ranks.any() else []),
        )
        codes = torch.arange(config.vocab_size, device=tree.parents.device) < config.num_codes
        self._uniform = codes / config.num_codes
        self._chain = first_ranks(tree)  # nodes of the places' first drafts, behind the root
        self._chain_inner = torch.searchsorted(tree.parent_nodes, self._chain[:-1])
        self._inner_depths = tree.depths[0, tree.parent_nodes]
        self._steps = torch.arange(self.max_depth + 1, device=tree.parents.device)[None]
        self.num_siblings = int(tree.ranks.max()) + 1
        self._num_wide = int(tree.depths[tree.ranks > 0].max()) if self.num_siblings > 1 else 0  # places with siblings
        self._candidate = (tree.ranks * self.max_depth + tree.depths - 1)[:, 1:]  # of each node but the root
        if self._num_wide * self.num_siblings > MAX_SIBLINGS:
            raise ValueError(
                f"siblings x depths that have some must be at most {MAX_SIBLINGS} for sjd drafts, got "
                f"{self.num_siblings} x {self._num_wide}; choose another tree"
            )
        self._is_public_tree = spec.relaxation == "public_tree"
        widest = int(tree.depths.flatten().bincount().max())
        if self._is_public_tree and widest > MAX_SIBLINGS:
            raise ValueError(
                f"drafts of one depth must be at most {MAX_SIBLINGS} for relaxation public_tree, got {widest}; choose "
                "another tree"
            )

    def allocate(self, num_rows: int, noise: NoiseField) -> SpeculativeJacobiState:
        """See `Drafter`."""
        device, window = self.tree.parents.device, self.max_depth
        return SpeculativeJacobiState(
            noise=noise,
            drafts=torch.zeros(num_rows, window, dtype=torch.int64, device=device),
            labels=torch.zeros(num_rows, window, self.vocab_size, device=device),
            counts=torch.zeros(num_rows, 1, dtype=torch.int64, device=device),
            likely=torch.zeros(num_rows, 1, dtype=torch.int64, device=device),
            leftovers=torch.zeros(num_rows, self._is_public_tree * self._num_wide, self.vocab_size, device=device),
        )

    def fill(self, state: SpeculativeJacobiState, rows: torch.Tensor, prefill: Prefill) -> None:
        """Forgets the drafts of the old prompts."""
        state.counts.index_fill_(0, rows, 0)
        state.likely.index_copy_(0, rows, prefill.first)

    def propose(self, state: SpeculativeJacobiState, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        """The drafts of the places behind the root, and initial ones where there is none."""
        positions = lengths[:, None] + self._steps[:, :-1]
        is_new = self._steps[:, :-1] >= state.counts
        initial, initial_labels = self._begin(state, root, positions)
        drafts = torch.where(is_new, initial, state.drafts)
        labels = torch.where(is_new[..., None], initial_labels, state.labels)
        left = labels[:, : self._num_wide].scatter(-1, drafts[:, : self._num_wide, None], 0.0)
        if self._is_public_tree:
            left = torch.where(is_new[:, : self._num_wide, None], left, state.leftovers)
        candidates = [drafts, *self._draw_siblings(state.noise, left, positions)]
        tokens = torch.cat(candidates, dim=1).gather(1, self._candidate.expand(len(root), -1))
        return Proposal(torch.cat([root, tokens], dim=1), self.tree, labels.index_select(1, self._inner_depths))

    def observe(self, state: SpeculativeJacobiState, outcome: Outcome, lengths: torch.Tensor) -> None:
        """Draws the drafts behind what was emitted anew."""
        probs = outcome.scores.weights.index_select(1, self._chain).softmax(-1)
        tokens, labels = self._redraw(state.noise, outcome, probs)
        places = outcome.num_accepted[:, None] + 1 + self._steps[:, :-1]
        places = places.clamp(max=self.max_depth)  # those behind the last row have no draft yet
        state.drafts.copy_(tokens.gather(1, places))
        state.labels.copy_(pick_rows(labels, places))
        torch.sub(self.max_depth, outcome.num_accepted[:, None], out=state.counts)
        if self._is_public_tree:
            state.leftovers.copy_(pick_rows(self._leftovers(outcome, probs, tokens), places[:, : self._num_wide]))
            state.counts.sub_(1).clamp_(min=0)  # of the last row nothing is drawn there
        state.likely.copy_(probs[:, -1:].argmax(-1))

    def _begin(
        self, state: SpeculativeJacobiState, root: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Initial drafts of all places, (batch, window), and their labels, (batch, window, vocab)."""
        noise = state.noise.fresh("initial", positions, self._steps[:, :-1])
        drafts = (noise.double() * self.config.num_codes).long()
        if self.spec.initial != "random":  # the first token of a line has no left neighbour
            known = torch.cat([root, state.drafts], dim=1).gather(1, state.counts)
            left = known if self.spec.initial == "repeat" else state.likely
            drafts = torch.where(positions % self.config.line_width == 0, drafts, left)
        is_end = self.config.ends_line(positions)  # where one token is possible
        drafts = torch.where(is_end, self.config.num_codes, drafts)
        labels = torch.zeros_like(state.labels).scatter_(-1, drafts[..., None], 1.0)
        if self.spec.labels == "uniform":
            labels = torch.where(is_end[..., None], labels, self._uniform)
        return drafts, labels

    def _draw_siblings(self, noise: NoiseField, left: torch.Tensor, positions: torch.Tensor) -> Iterator[torch.Tensor]:
        """Further drafts of the first places, int64 (batch, window), -1 where no more are left; one per rank. `left` is
        what they are drawn from, (batch, places, vocab).
        """
        wide = slice(0, self._num_wide)
        for rank in range(1, self.num_siblings):
            slots = self._steps[:, wide] * self.num_siblings + rank
            token = noise.draw("sibling", left, positions[:, wide], slots)
            token = token.masked_fill(left.gather(-1, token[..., None]).squeeze(-1) == 0, -1)
            yield F.pad(token, (0, self.max_depth - self._num_wide))
            left = left.scatter(-1, token.clamp(min=0)[..., None], 0.0)

    def _redraw(self, noise: NoiseField, outcome: Outcome, probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """New drafts of the places of all rows, int64 (batch, window + 1), and their labels."""
        positions = outcome.positions.index_select(1, self._chain)
        if self.spec.coupling == "gumbel":
            weights = outcome.scores.weights.index_select(1, self._chain)
            return (weights + noise.gumbel("draft", positions)).argmax(-1), probs
        if (self.spec.coupling, self.spec.threshold) == ("none", None):
            return noise.draw("redraw", probs, positions, self._steps), probs
        drafts = outcome.proposal.tokens.index_select(1, self._chain[1:])
        labels = outcome.proposal.draft_probs.index_select(1, self._chain_inner)
        is_kept, left = self._keep(noise, probs[:, :-1], drafts, labels, positions[:, :-1])
        drawn = noise.draw("redraw", torch.cat([left, probs[:, -1:]], dim=1), positions, self._steps)
        is_kept, drafts = F.pad(is_kept, (0, 1)), F.pad(drafts, (0, 1))  # the last row has no draft
        if self.spec.relaxation == "public_labels":
            probs = torch.where(is_kept[..., None], F.pad(labels, (0, 0, 0, 1)), probs)
        return torch.where(is_kept, drafts, drawn), probs

    def _leftovers(self, outcome: Outcome, probs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """What the rejection of each place's draft leaves, without the new draft unless the old one was kept: (batch,
        window + 1, vocab).
        """
        left = (probs[:, :-1] - outcome.proposal.draft_probs.index_select(1, self._chain_inner)).clamp(min=0)
        new = tokens[:, :-1, None]
        is_kept = new == outcome.proposal.tokens.index_select(1, self._chain[1:])[..., None]
        return F.pad(left.scatter(-1, new, left.gather(-1, new) * is_kept), (0, 0, 0, 1))

    def _keep(
        self,
        noise: NoiseField,
        probs: torch.Tensor,
        drafts: torch.Tensor,
        labels: torch.Tensor,
        positions: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Whether drafts are kept, (batch, window), and what the others are drawn from, (batch, window, vocab)."""
        if self.spec.relaxation == "threshold":
            target, draft = (part.gather(-1, drafts[..., None]).squeeze(-1) for part in (probs, labels))
            return target > self.spec.threshold * draft, probs
        uniforms = noise.fresh("keep", positions, self._steps[:, :-1])[..., None]
        found = accept_by_rejection(probs, drafts[..., None], labels, uniforms, RejectionRule())
        return found.rank == 0, found.residual
