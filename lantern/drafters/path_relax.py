"""PathRelax: several chains of SJD drafts from one root, of which the longest accepted one is taken.

Not exact, even where nothing is relaxed: the longest chain is one whose tokens are followed well, so that such tokens
are emitted too often.

Source: PathRelax, or PathSpec (arXiv 2606.10492; Haodong-Lei-Ray/PathSpec@8a3df48).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from lantern.acceptance.rejection import ByRejection, Rejection
from lantern.decoding_state import DecodingModels
from lantern.draft_tree import StaticTree, static_tree
from lantern.drafters.base import Drafter
from lantern.drafters.jacobi import JacobiDrafter
from lantern.drafters.sjd import SpeculativeJacobiDrafter, SpeculativeJacobiState
from lantern.methods import MethodSpec
from lantern.noise import NoiseField
from lantern.sampling import SamplingConfig
from lantern.step import Outcome, Prefill, Proposal, Scores, pick_rows
from lantern.tree_shapes import MAX_SIBLINGS, tree_choices


@dataclass
class ChainNoise:
    """The noise of images for their chains, which stand where images stand in a batch and have slots of their own.

    Attributes:
        noise: of the images.
        num_chains: of an image.
        num_slots: of a chain.
    """

    noise: NoiseField
    num_chains: int
    num_slots: int

    def fresh(self, stream: str, positions: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """See `NoiseField.fresh`."""
        places, slots = self._of_images(positions, slots)
        return self.noise.fresh(stream, places, slots).view_as(positions)

    def draw(self, stream: str, probs: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """See `NoiseField.draw`."""
        places, slots = self._of_images(positions, slots)
        return self.noise.draw(stream, probs.view(*places.shape, -1), places, slots).view_as(positions)

    def _of_images(self, positions: torch.Tensor, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shift = torch.arange(self.num_chains, device=slots.device)[:, None] * self.num_slots
        return positions.view(-1, self.num_chains * positions.shape[1]), (slots + shift).view(1, -1)


class ParallelChainsDrafter(Drafter):
    """Drafts several chains, each as SJD drafts its own.

    Args:
        tree: chains of one length below the root.
        chain: drafts one of them.
        delta: see `LongestChain`.

    Raises:
        ValueError: too many drafts for the noise of a place.
    """

    def __init__(self, tree: StaticTree, chain: SpeculativeJacobiDrafter, delta: float) -> None:
        self.tree, self.chain, self.max_depth, self.verifier = tree, chain, tree.max_depth, LongestChain(delta)
        self.num_chains, self.noise_streams = (tree.num_nodes - 1) // tree.max_depth, chain.noise_streams
        if self.num_chains * (self.max_depth + 1) > MAX_SIBLINGS:
            raise ValueError(
                f"parallel chains must have at most {MAX_SIBLINGS} nodes, each with a root, got {self.num_chains} of "
                f"{self.max_depth + 1}; choose fewer or shorter ones"
            )
        self._paths = tree.paths[0, -self.num_chains :]  # (chains, window + 1)

    @classmethod
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> Drafter:
        """At temperature 0 drafts are the most probable tokens of the last step, which Jacobi drafts are too."""
        if sampling.is_greedy:
            tree = static_tree(spec.tree_shape, models.target.device)
            return JacobiDrafter(tree, models.target.config, num_kept=1)
        tree = static_tree(spec.tree_shape, models.target.device)
        chain = static_tree(tree_choices(f"chain{tree.max_depth}"), models.target.device)
        return cls(tree, SpeculativeJacobiDrafter(chain, spec, models.target.config), spec.delta)

    def allocate(self, num_rows: int, noise: NoiseField) -> SpeculativeJacobiState:
        """See `Drafter`; the state has a row per chain."""
        return self.chain.allocate(num_rows * self.num_chains, ChainNoise(noise, self.num_chains, self.max_depth + 1))

    def fill(self, state: SpeculativeJacobiState, rows: torch.Tensor, prefill: Prefill) -> None:
        """Forgets the drafts of the old prompts."""
        chains = torch.arange(self.num_chains, device=rows.device)
        self.chain.fill(state, (rows[:, None] * self.num_chains + chains).flatten(), prefill)

    def propose(self, state: SpeculativeJacobiState, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        """The chains side by side; here `draft_probs` are of drafts, (batch, nodes - 1, vocab), not of inner nodes."""
        chains = self.chain.propose(state, self._repeat(root), self._repeat(lengths))
        shape = (-1, self.num_chains, self.max_depth)
        tokens = chains.tokens[:, 1:].reshape(shape).transpose(1, 2).flatten(1)  # nodes are numbered by depth
        labels = chains.draft_probs.view(*shape, chains.draft_probs.shape[2]).transpose(1, 2).flatten(1, 2)
        return Proposal(torch.cat([root, tokens], dim=1), self.tree, labels)

    def observe(self, state: SpeculativeJacobiState, outcome: Outcome, lengths: torch.Tensor) -> None:
        """Draws the drafts of all chains behind the places that were emitted anew."""
        scores, nodes = outcome.scores, self._paths.flatten().expand(len(lengths), -1)
        logits, positions = pick_rows(scores.logits, nodes), scores.positions.gather(1, nodes)
        rows = (len(lengths) * self.num_chains, self.max_depth + 1)
        chains = Scores(None, logits.view(*rows, -1), positions.view(rows), scores.noise, scores.sampling)
        own = replace(outcome, scores=chains, num_accepted=self._repeat(outcome.num_accepted))
        self.chain.observe(state, own, self._repeat(lengths))

    def _repeat(self, values: torch.Tensor) -> torch.Tensor:
        return values.repeat_interleave(self.num_chains, dim=0)


class LongestChain(ByRejection):
    """Every chain is verified by itself, and the longest is taken, the first of several.

    Draft x of a chain is accepted with probability min(1, (t(x) + m) / p(x)): m is `delta` times the mean of what t
    gives to the tokens that the other chains hold at that place. A rejection leaves normalise(max(0, t - p)).

    Not exact: TV of whole images grows with the number of chains and with delta, without a known bound.

    Args:
        delta: share of the other chains' mass that is lent to a draft.

    Source: PathRelax (arXiv 2606.10492; Haodong-Lei-Ray/PathSpec@8a3df48).
    """

    def __init__(self, delta: float) -> None:
        super().__init__(Rejection())
        self.delta = delta

    def verify_all(self, scores: Scores, proposal: Proposal) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Accepted, and the tokens behind; behind the root, that of the first chain's rejection."""
        tree, tokens, labels = proposal.tree, proposal.tokens, proposal.draft_probs
        batch, window = len(tokens), tree.max_depth
        num_chains = (tree.num_nodes - 1) // window
        probs = scores.weights.softmax(-1).index_select(1, tree.parents[0, 1:])  # (batch, drafts, vocab)
        drafts = tokens[:, 1:].view(batch, window, num_chains)
        beside = drafts[:, :, None].expand(-1, -1, num_chains, -1).reshape(batch, -1, num_chains)
        masses = probs.gather(2, beside).view(batch, window, num_chains, num_chains)
        own = masses.diagonal(dim1=2, dim2=3)
        lent = (masses.sum(3) - own) * (self.delta / max(1, num_chains - 1))
        uniforms = scores.noise.uniform(scores.positions.index_select(1, tree.parents[0, 1::num_chains]), num_chains)
        token_draft = labels.gather(2, tokens[:, 1:, None]).view_as(drafts)
        fits = (uniforms * token_draft <= own + lent) & (token_draft > 0)
        accepted = torch.cat([tokens[:, :1] < 0, fits.flatten(1)], dim=1)
        first = tree.children[0, :, 0] - 1  # of each inner node's children, among the drafts
        left = self.rejection.residual_probs(probs.index_select(1, first), None, labels.index_select(1, first))
        noise = scores.noise.gumbel("target", scores.positions.index_select(1, tree.parent_nodes))
        left_best, left_own = (left.log_() + noise).max(-1)
        best, emitted = scores.keys.max(-1)
        inner = tree.parent_nodes
        return accepted, emitted.index_copy(1, inner, left_own), best.index_copy(1, inner, left_best)
