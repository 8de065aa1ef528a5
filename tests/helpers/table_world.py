"""A target whose logits are sums of table rows, and the steps of a drafter and a verifier on it.

The stub of the fixtures of peer methods (tests/data/peers): small enough that laws of whole images are known.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lantern.acceptance.base import Verifier
from lantern.drafters.base import Drafter
from lantern.noise import GUMBEL_STREAMS, NoiseField
from lantern.sampling import SamplingConfig
from lantern.step import Outcome, Prefill, Proposal, Scores


@dataclass
class TableWorld:
    """Logits at position n: `base[n] + left[x[n-1]] + left2[x[n-2]] + up[x[n-width]]`, guided; terms of missing
    neighbours left out.

    Attributes:
        tables: by name, "base_c" and so on; those of the null half end in "_u".
        width: tokens of a line.
        sampling: guidance and filters.
    """

    tables: dict[str, torch.Tensor]
    width: int
    sampling: SamplingConfig

    @property
    def vocab_size(self) -> int:
        """Codes."""
        return self.tables["base_c"].shape[1]

    def logits(self, contexts: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Contexts (batch, nodes, tokens), positions (batch, nodes) that are predicted: (batch, nodes, vocab)."""
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
    """A batch of images of a table world, drawn step by step.

    Args:
        world: the target.
        drafter: proposes.
        verifier: verifies.
        noise: a `NoiseField`, or what stands in for one.
        first: int64, (batch, 1): their token 0.
        num_tokens: of an image.
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
        """What a step drafts, and what the target makes of it."""
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
        """As a step of `Decoder`."""
        proposal, scores = self.propose()
        outcome = self.verifier.verify(scores, proposal)
        self.drafter.observe(self.state, outcome, self.lengths)
        self.tokens.scatter_(1, self.lengths[:, None] + torch.arange(outcome.emitted.shape[1]), outcome.emitted)
        self.lengths = (self.lengths + outcome.num_accepted + 1).clamp(max=self.num_tokens)
        return outcome

    def draw(self) -> torch.Tensor:
        """All steps: int64, (batch, num_tokens)."""
        while (self.lengths < self.num_tokens).any():
            self.step()
        return self.tokens[:, : self.num_tokens]


def count_images(
    world: TableWorld, drafter: Drafter, verifier: Verifier, num_images: int, num_tokens: int
) -> torch.Tensor:
    """How often each of the vocab^num_tokens images is drawn, token 0 first; noise is keyed as that of images."""
    streams, vocab_size = ("target", *drafter.noise_streams, *verifier.noise_streams), world.vocab_size
    noise = NoiseField(num_images, num_tokens, vocab_size, streams)
    generator = torch.Generator().manual_seed(1)
    for stream, values in noise._values.items():
        size = vocab_size if stream in GUMBEL_STREAMS else 8  # slots that are read
        drawn = torch.rand(len(values), size, generator=generator).clamp(min=1e-30, max=1 - 2**-24)
        noise._values[stream] = -(-drawn.log()).log() if stream in GUMBEL_STREAMS else drawn
    start = world.logits(torch.zeros(1, 1, num_tokens).long(), torch.zeros(1, 1).long())[:, 0]
    first = start + noise.gumbel("target", torch.zeros(num_images, 1).long())[:, 0]
    images = Images(world, drafter, verifier, noise, first.argmax(-1, keepdim=True), num_tokens)
    digits = vocab_size ** torch.arange(num_tokens - 1, -1, -1)
    return (images.draw() * digits).sum(1).bincount(minlength=vocab_size**num_tokens)
