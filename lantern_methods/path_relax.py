"""PathRelax: several chains of speculative Jacobi drafts (SJD) after the last emitted token.

Each chain is verified separately, and the chain with the most accepted drafts is emitted. Even without relaxation this
is not exact. More drafts are accepted after tokens that are easy to continue, so that these tokens are emitted too
often.

A chain is drafted like a batch row of `SpeculativeJacobiDrafter`: row i * num_chains + j is chain j of image i. Tensors
of all rows have the first axis `chains`.

Source: PathRelax, or PathSpec (arXiv 2606.10492; Haodong-Lei-Ray/PathSpec@8a3df48).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import torch
from typing_extensions import override

from lantern.acceptance.rejection import ACCEPT, ByRejection, Rejection
from lantern.draft_tree import StaticTree, static_tree
from lantern.drafters.base import Drafter
from lantern.drafters.jacobi import JacobiDrafter
from lantern.methods import MethodSpec
from lantern.noise import TARGET, NoiseField, Uniform
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels
from lantern.step import Outcome, Prefill, Proposal, Scores, pick_rows
from lantern.tree_shapes import tree_choices
from lantern_methods.sjd import SpeculativeJacobiDrafter, SpeculativeJacobiState


@dataclass
class ChainNoise:
    """The noise of all chains, in place of a `NoiseField`. The chains of an image read separate slots of its positions.

    If a chain has 12 slots, for example, the second chain of an image reads the slots 12 to 23.
    """

    noise: NoiseField
    num_chains: int

    def fresh(self, stream: Uniform, positions: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Return a uniform number for each position, (chains, n). `slots`, (1, n), count from 0 in every chain."""
        image_stream, image_positions, image_slots = self._of_images(stream, positions, slots)
        return self.noise.fresh(image_stream, image_positions, image_slots).view_as(positions)

    def sample(
        self, stream: Uniform, probs: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor
    ) -> torch.Tensor:
        """Sample a code for each position of each chain, int64 (chains, n), with slots as in `fresh`."""
        image_stream, image_positions, image_slots = self._of_images(stream, positions, slots)
        image_probs = probs.view(*image_positions.shape, -1)
        return self.noise.sample(image_stream, image_probs, image_positions, image_slots).view_as(positions)

    def _of_images(
        self, stream: Uniform, positions: torch.Tensor, slots: torch.Tensor
    ) -> tuple[Uniform, torch.Tensor, torch.Tensor]:
        # The chains of an image lie next to each other, as one row of num_chains * n positions.
        shift = torch.arange(self.num_chains, device=slots.device)[:, None] * stream.slots
        image_positions = positions.view(-1, self.num_chains * positions.shape[1])
        return for_chains(stream, self.num_chains), image_positions, (slots + shift).view(1, -1)


def for_chains(stream: Uniform, num_chains: int) -> Uniform:
    """Return the stream of an image from that of a chain, with separate slots for every chain."""
    return replace(stream, slots=num_chains * stream.slots)


class ParallelChainsDrafter(Drafter[SpeculativeJacobiState]):
    """The drafter of PathRelax. At temperature 0 `make` returns a `JacobiDrafter` instead.

    Args:
        tree: chains of the same length below the root.
        chain: the drafter of one chain.
        delta: strength of the relaxation, see `LongestChain`. 0 for none.
    """

    tree: StaticTree

    def __init__(self, tree: StaticTree, chain: SpeculativeJacobiDrafter, delta: float) -> None:
        self.tree = tree
        self.chain = chain
        self.max_depth = tree.max_depth
        self.verifier = LongestChain(delta)
        self.num_chains = (tree.num_nodes - 1) // tree.max_depth
        of_chain = (stream for stream in chain.noise_streams if isinstance(stream, Uniform))
        self.noise_streams = tuple(for_chains(stream, self.num_chains) for stream in of_chain)
        # The last nodes are the ends of the chains, since nodes are numbered by depth.
        self._paths = tree.paths[0, -self.num_chains :]  # (num_chains, window + 1)

    @classmethod
    @override
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> Drafter:
        tree = static_tree(spec.static_choices, models.target.device)
        # num_kept=1: drafts are the most probable codes of the previous step.
        if sampling.is_greedy:
            return JacobiDrafter(tree, models.target.config, num_kept=1)
        chain = static_tree(tree_choices(f"chain{tree.max_depth}"), models.target.device)
        return cls(tree, SpeculativeJacobiDrafter(chain, spec, models.target.config), spec["delta"])

    @override
    def allocate(self, num_rows: int, noise: NoiseField) -> SpeculativeJacobiState:
        chain_noise = ChainNoise(noise, self.num_chains)
        # `ChainNoise` has the functions of `NoiseField` that the drafter of a chain calls.
        return self.chain.allocate(num_rows * self.num_chains, cast("NoiseField", chain_noise))

    @override
    def fill(self, state: SpeculativeJacobiState, rows: torch.Tensor, prefill: Prefill) -> None:
        chains = torch.arange(self.num_chains, device=rows.device)
        self.chain.fill(state, (rows[:, None] * self.num_chains + chains).flatten(), prefill)

    @override
    def propose(self, state: SpeculativeJacobiState, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        # One distribution per draft, not one per inner node: the root's children belong to different chains, and are
        # sampled from different distributions.
        chains = self.chain.propose(state, self._repeat(root), self._repeat(lengths))
        assert chains.draft_probs is not None
        shape = (-1, self.num_chains, self.max_depth)
        tokens = chains.tokens[:, 1:].reshape(shape).transpose(1, 2).flatten(1)  # nodes are numbered by depth
        draft_probs = chains.draft_probs.view(*shape, chains.draft_probs.shape[2]).transpose(1, 2).flatten(1, 2)
        return Proposal(torch.cat([root, tokens], dim=1), self.tree, draft_probs)

    @override
    def observe(self, state: SpeculativeJacobiState, outcome: Outcome, lengths: torch.Tensor) -> None:
        scores = outcome.scores
        # One row per chain. The root belongs to each.
        nodes = self._paths.flatten().expand(len(lengths), -1)  # (batch, num_chains * (window + 1))
        rows = (len(lengths) * self.num_chains, self.max_depth + 1)
        logits = pick_rows(scores.logits, nodes).view(*rows, -1)
        positions = scores.positions.gather(1, nodes).view(rows)
        chains = Scores(None, logits, positions, scores.noise, scores.sampling)
        chains_outcome = replace(outcome, scores=chains, num_accepted=self._repeat(outcome.num_accepted))
        self.chain.observe(state, chains_outcome, self._repeat(lengths))

    def _repeat(self, values: torch.Tensor) -> torch.Tensor:
        return values.repeat_interleave(self.num_chains, dim=0)


class LongestChain(ByRejection):
    """The verifier of PathRelax. If several chains have the most accepted drafts, the first of them is emitted.

    Let x be a draft, t the target distribution after the drafts before x in its chain, and p the distribution that x
    was sampled from. x is accepted with probability min(1, (t(x) + m) / p(x)). Here m is `delta` times the mean of t(y)
    over the drafts y of all other chains at the position of x. The residual distribution after a rejection is
    normalise(max(0, t - p)).

    The total variation distance between the distribution of the images and the target's grows with the number of chains
    and with delta. No upper limit is known.
    """

    def __init__(self, delta: float) -> None:
        super().__init__(Rejection())
        self.delta = delta

    @override
    def verify_all(self, scores: Scores, proposal: Proposal) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        tree = proposal.tree
        tokens = proposal.tokens
        draft_probs = proposal.draft_probs
        inner = tree.parent_nodes
        assert draft_probs is not None
        assert inner is not None
        batch = len(tokens)
        window = tree.max_depth
        num_chains = (tree.num_nodes - 1) // window
        # At each draft the distribution after its parent, (batch, drafts, vocab).
        probs = scores.weights.softmax(-1).index_select(1, tree.parents[0, 1:])
        # Nodes are numbered by depth, and within a depth by chain.
        drafts = tokens[:, 1:].view(batch, window, num_chains)
        # masses[..., i, j]: the probability that chain i's target distribution gives the token of chain j.
        tokens_at_position = drafts[:, :, None].expand(-1, -1, num_chains, -1).reshape(batch, -1, num_chains)
        masses = probs.gather(2, tokens_at_position).view(batch, window, num_chains, num_chains)
        token_probs = masses.diagonal(dim1=2, dim2=3)  # (batch, window, chains)
        # m. max: a single chain has no others, and its sum is 0.
        added = (masses.sum(3) - token_probs) * (self.delta / max(1, num_chains - 1))
        token_draft = draft_probs.gather(2, tokens[:, 1:, None]).view_as(drafts)
        # (batch, window), the positions that the first chain's parents predict. Each chain has its own number there.
        positions = scores.positions.index_select(1, tree.parents[0, 1::num_chains])
        uniforms = scores.noise.uniform(ACCEPT, positions, num_chains)
        # u p(x) <= t(x) + m, without a division by p(x), which may be 0.
        is_kept = (uniforms * token_draft <= token_probs + added) & (token_draft > 0)
        is_root_accepted = torch.zeros_like(tokens[:, :1], dtype=torch.bool)
        is_accepted = torch.cat([is_root_accepted, is_kept.flatten(1)], dim=1)
        # Only the root has several children. If it accepts none, it emits a sample of the first child's residual.
        first = tree.children[0, :, 0] - 1  # first child of each inner node, as an index into the drafts
        first_probs = probs.index_select(1, first)
        residual = self.rejection.residual_probs(first_probs, None, draft_probs.index_select(1, first))
        noise = scores.noise.gumbel(TARGET, scores.positions.index_select(1, inner))
        _, residual_sampled = (residual.log_() + noise).max(-1)  # Gumbel-max
        best, sampled = scores.keys.max(-1)
        return is_accepted, sampled.index_copy(1, inner, residual_sampled), best
