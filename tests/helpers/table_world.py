"""A tiny target whose logits are sums of table entries, and a decoding loop on it.

It is so small that the distribution of whole images can be computed. The stored results of published methods in
tests/data/peers were made on the same target.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lantern.acceptance.base import Verifier
from lantern.drafters.base import Drafter
from lantern.noise import TARGET, Gumbel, NoiseField
from lantern.sampling import SamplingConfig
from lantern.step import Outcome, Prefill, Proposal, Scores


@dataclass
class TableWorld:
    """Target whose logits depend on the position and on three earlier tokens.

    The logits at position n are `base[n] + left[x[n-1]] + left2[x[n-2]] + up[x[n-width]]`. Terms of tokens before the
    image are left out. With guidance, each branch has its own tables.

    Attributes:
        tables: name -> table, such as "base_c". Names of the conditional branch end in "_c", names of the null branch
            in "_u".
        width: number of tokens of a line.
        sampling: guidance and filters.
    """

    tables: dict[str, torch.Tensor]
    width: int
    sampling: SamplingConfig

    @property
    def vocab_size(self) -> int:
        """Number of codes."""
        return self.tables["base_c"].shape[1]

    def logits(self, contexts: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Compute guided logits.

        Args:
            contexts: tokens of the image that each node sees, int64 (batch, nodes, tokens).
            positions: image positions that are predicted, int64 (batch, nodes).

        Returns:
            (batch, nodes, vocab).
        """
        halves = []
        for half in ("c", "u")[: 1 + self.sampling.is_guided]:
            base = self.tables[f"base_{half}"]
            total = base[positions.clamp(max=len(base) - 1)]
            for name, distance in (("left", 1), ("left2", 2), ("up", self.width)):
                place = positions - distance
                token = contexts.gather(2, place.clamp(min=0)[..., None]).squeeze(2)
                total = total + self.tables[f"{name}_{half}"][token] * (place >= 0)[..., None]
            halves.append(total)
        return halves[-1] + self.sampling.cfg_scale * (halves[0] - halves[-1]) if len(halves) > 1 else halves[0]


class Images:
    """A batch of images of a `TableWorld`, generated step by step.

    Args:
        world: the target.
        drafter: proposes drafts.
        verifier: verifies them.
        noise: a `NoiseField`, or an object with its methods.
        first: token 0 of each image, int64 (batch, 1).
        num_tokens: number of tokens of an image.
    """

    def __init__(
        self,
        world: TableWorld,
        drafter: Drafter,
        verifier: Verifier,
        noise: object,
        first: torch.Tensor,
        num_tokens: int,
    ) -> None:
        self.world, self.drafter, self.verifier, self.noise, self.num_tokens = (
            world,
            drafter,
            verifier,
            noise,
            num_tokens,
        )
        self.tokens = torch.cat([first, first.new_zeros(len(first), num_tokens + drafter.max_depth)], dim=1)
        self.lengths = torch.ones(len(first), dtype=torch.int64)
        self.state = drafter.allocate(len(first), noise)
        drafter.fill(self.state, torch.arange(len(first)), Prefill(None, None, first))

    def propose(self) -> tuple[Proposal, Scores]:
        """Return the drafts of the next step, and the target's scores of them."""
        root = self.tokens.gather(1, self.lengths[:, None] - 1)
        proposal = self.drafter.propose(self.state, root, self.lengths)
        tree, shape = proposal.tree, (len(root), proposal.tree.num_nodes, -1)
        paths = tree.paths.expand(shape)
        drafted = proposal.tokens.clamp(min=0)[:, None].expand(shape).gather(2, paths)
        depths = tree.depths[:, None].expand(shape[0], shape[1], tree.num_nodes).gather(2, paths)
        places = self.lengths[:, None, None] - 1 + depths
        contexts = self.tokens[:, None].expand(shape).scatter(2, places, drafted)
        positions = self.lengths[:, None] + tree.depths
        scores = Scores(None, self.world.logits(contexts, positions), positions, self.noise, self.world.sampling)
        return proposal, scores

    def step(self) -> Outcome:
        """Run one decoding step, like `Decoder`, and return its outcome."""
        proposal, scores = self.propose()
        outcome = self.verifier.verify(scores, proposal)
        self.drafter.observe(self.state, outcome, self.lengths)
        self.tokens.scatter_(1, self.lengths[:, None] + torch.arange(outcome.emitted.shape[1]), outcome.emitted)
        self.lengths = (self.lengths + outcome.num_accepted + 1).clamp(max=self.num_tokens)
        return outcome

    def draw(self) -> torch.Tensor:
        """Run all steps, and return the tokens, int64 (batch, num_tokens)."""
        while (self.lengths < self.num_tokens).any():
            self.step()
        return self.tokens[:, : self.num_tokens]


def count_images(
    world: TableWorld, drafter: Drafter, verifier: Verifier, num_images: int, num_tokens: int
) -> torch.Tensor:
    """Generate images with independent noise, and count how often each possible image occurs.

    Args:
        world: the target.
        drafter: proposes drafts.
        verifier: verifies them.
        num_images: number of images to generate.
        num_tokens: number of tokens of an image.

    Returns:
        int64 (vocab^num_tokens,). The index of an image reads its tokens as digits, token 0 first.
    """
    streams, vocab_size = (TARGET, *drafter.noise_streams, *verifier.noise_streams), world.vocab_size
    noise = NoiseField(num_images, num_tokens, vocab_size, streams)
    generator = torch.Generator().manual_seed(1)
    for stream, values in noise._values.items():
        size = (
            vocab_size if isinstance(stream, Gumbel) else 8
        )  # uniform numbers per position, more than any drafter reads
        drawn = torch.rand(len(values), size, generator=generator).clamp(min=1e-30, max=1 - 2**-24)
        noise._values[stream] = -(-drawn.log()).log() if isinstance(stream, Gumbel) else drawn
    start = world.logits(torch.zeros(1, 1, num_tokens).long(), torch.zeros(1, 1).long())[:, 0]
    first = start + noise.gumbel(TARGET, torch.zeros(num_images, 1).long())[:, 0]
    images = Images(world, drafter, verifier, noise, first.argmax(-1, keepdim=True), num_tokens)
    digits = vocab_size ** torch.arange(num_tokens - 1, -1, -1)
    return (images.draw() * digits).sum(1).bincount(minlength=vocab_size**num_tokens)
