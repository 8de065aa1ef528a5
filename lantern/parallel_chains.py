"""PathRelax: several chains of SJD drafts from one root, of which the longest accepted one is taken.

Not exact, even where nothing is relaxed: the longest chain is one whose tokens are followed well, so that such tokens
are emitted too often. How a chain is judged: `lantern.rules.LongestChain`.

Source: PathRelax, or PathSpec (arXiv 2606.10492; Haodong-Lei-Ray/PathSpec@8a3df48).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from lantern.draft_tree import StaticTree
from lantern.drafting import Prefill, Proposal
from lantern.noise import NoiseField
from lantern.speculative_jacobi import SpeculativeJacobiDrafter, SpeculativeJacobiState
from lantern.tree_shapes import MAX_SIBLINGS
from lantern.verification import Outcome, Scores, pick_rows


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


class ParallelChainsDrafter:
    """Drafts several chains, each as SJD drafts its own.

    Args:
        tree: chains of one length below the root.
        chain: drafts one of them.

    Raises:
        ValueError: too many drafts for the noise of a place.
    """

    def __init__(self, tree: StaticTree, chain: SpeculativeJacobiDrafter) -> None:
        self.tree, self.chain, self.max_depth = tree, chain, tree.max_depth
        self.num_chains, self.noise_streams = (tree.num_nodes - 1) // tree.max_depth, chain.noise_streams
        if self.num_chains * (self.max_depth + 1) > MAX_SIBLINGS:
            raise ValueError(
                f"parallel chains must have at most {MAX_SIBLINGS} nodes, each with a root, got {self.num_chains} of "
                f"{self.max_depth + 1}; choose fewer or shorter ones"
            )
        self._paths = tree.paths[0, -self.num_chains :]  # (chains, window + 1)

    def allocate(self, num_rows: int, noise: NoiseField) -> SpeculativeJacobiState:
        """See `Drafter`; the state has a row per chain."""
        return self.chain.allocate(num_rows * self.num_chains, ChainNoise(noise, self.num_chains, self.max_depth + 1))

    def fill(self, state: SpeculativeJacobiState, rows: torch.Tensor, prefill: Prefill) -> None:
        """Forgets the drafts of the old prompts."""
        chains = torch.arange(self.num_chains, device=rows.device)
        first = self._repeat(prefill.first)
        rows = (rows[:, None] * self.num_chains + chains).flatten()
        self.chain.fill(state, rows, replace(prefill, first=first))

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
