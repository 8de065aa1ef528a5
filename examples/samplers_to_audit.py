"""Samplers for `lantern audit`: speculative sampling, two mistakes that others have made in it, and an acceptance.

cd examples
lantern audit samplers_to_audit:speculative
"""

import torch

from lantern.acceptance.base import Acceptance
from lantern.parameters import Parameter


def speculative(world, prompts, seeds):
    """Draft each token from the draft model, and verify it with fresh noise."""

    def next_tokens(target, draft, generator):
        drafted = (draft.log() + gumbel(draft, generator)).argmax(1)
        return verify(target, draft, drafted, gumbel(draft, generator), generator)

    return sample(world, prompts, seeds, next_tokens)


def shared_gumbel(world, prompts, seeds):
    """Use the noise of the draft again for the token that replaces it. This is not lossless."""

    def next_tokens(target, draft, generator):
        noise = gumbel(draft, generator)
        drafted = (draft.log() + noise).argmax(1)
        return verify(target, draft, drafted, noise, generator)

    return sample(world, prompts, seeds, next_tokens)


def greedy_drafts(world, prompts, seeds):
    """Draft the most probable token, and verify it as if it were sampled. This is not lossless."""

    def next_tokens(target, draft, generator):
        return verify(target, draft, draft.argmax(1), gumbel(draft, generator), generator)

    return sample(world, prompts, seeds, next_tokens)


def sample(world, prompts, seeds, next_tokens):
    """Sample sequences token by token."""
    generator = torch.Generator().manual_seed(int(seeds[0]))
    tokens = torch.empty(len(prompts), 0, dtype=torch.int64)
    for _ in range(world.num_tokens):
        target = world.target_probs(prompts, tokens)
        draft = world.draft_probs(prompts, tokens)
        tokens = torch.cat([tokens, next_tokens(target, draft, generator)[:, None]], dim=1)
    return tokens


def gumbel(probs, generator):
    """Return standard Gumbel noise of the shape of `probs`."""
    return -(-torch.rand(probs.shape, generator=generator, dtype=probs.dtype).log()).log()


def verify(target, draft, drafted, noise, generator):
    """Accept drafts with probability min(1, p / q), and sample from max(0, p - q) after a rejection."""
    ratio = (target / draft).gather(1, drafted[:, None])[:, 0]
    is_accepted = torch.rand(len(ratio), generator=generator) < ratio
    replacement = ((target - draft).clamp(min=0).log() + noise).argmax(1)
    return torch.where(is_accepted, drafted, replacement)


class Typical(Acceptance):
    """Accept every draft that the target gives at least a probability of `floor`."""

    parameters = {"floor": Parameter("floor", "probability from which a draft is accepted", 0, 1, is_open=True)}  # noqa: RUF012

    def relaxed_prob(self, probs, draft_probs, tokens):
        """Return s(x) = 1 if t(x) >= floor, and t(x) otherwise."""
        token_probs = probs.gather(-1, tokens)
        return torch.where(token_probs >= self.floor, torch.ones_like(token_probs), token_probs)
