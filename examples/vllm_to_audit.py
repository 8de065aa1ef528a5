"""vLLM's verification of drafts above temperature 0 as samplers for `lantern.audit`. Run it where vLLM is installed.

The first four call the code of vLLM's V1 runner. The last two state the rule of its V2 runner, which needs Triton:
vllm/v1/worker/gpu/spec_decode/rejection_sampler_utils.py in 0.32. V2 makes the noise of a token from seed, position
and token, and uses it for the token after a rejection.

python examples/vllm_to_audit.py
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import torch

import lantern

DEPTH = 2  # drafts of a step


def v1_sampled_drafts(world, prompts, seeds):
    """Sample drafts from the draft model, whose distributions vLLM is told."""
    return by_v1(world, prompts, seeds, is_sampled=True)


def v1_likely_drafts(world, prompts, seeds):
    """Draft the most probable tokens, without distributions: n-gram drafts, and EAGLE's without sampling."""
    return by_v1(world, prompts, seeds, is_sampled=False)


def v1_with_temperatures(world, prompts, seeds):
    """Do the same after vLLM has applied temperature 1, as it does for every request above temperature 0."""
    return by_v1(world, prompts, seeds, is_sampled=False, applies_temperature=True)


def v1_greedy_with_noise(world, prompts, seeds):
    """Add fixed noise to the logits, and verify greedily drafts that have the same noise: the plugin of this folder."""
    return by_v1(world, prompts, seeds, is_sampled=False, is_noisy=True)


def v2_own_noise(world, prompts, seeds):
    """Draft one token with noise of its own, without distributions, and verify by the ratio of probabilities."""
    return by_v2(world, prompts, seeds, is_shared=False)


def v2_shared_noise(world, prompts, seeds):
    """Do the same with a draft that has the target's noise, as Jacobi drafts have: the noise is used twice."""
    return by_v2(world, prompts, seeds, is_shared=True)


def by_v1(world, prompts, seeds, *, is_sampled, applies_temperature=False, is_noisy=False):
    """Sample sequences with up to DEPTH drafts at a time, verified by vLLM's V1 runner."""
    from vllm.v1.sample.rejection_sampler import apply_sampling_constraints, rejection_sample

    torch.manual_seed(int(seeds[0]))
    size = (len(prompts), world.num_tokens, world.vocab_size)
    noise = -torch.empty(size).exponential_().log() if is_noisy else torch.zeros(size)
    done = torch.full((len(prompts), world.num_tokens + 1), -1)
    lengths = torch.zeros(len(prompts), dtype=torch.int64)
    for length in range(world.num_tokens):
        rows = (lengths == length).nonzero()[:, 0]
        depth = min(DEPTH, world.num_tokens - length - 1)  # a step emits one token more
        if len(rows) == 0:
            continue
        tokens, drafting, targets = done[rows, :length], [], []
        for _ in range(depth):
            drafting.append(world.draft_probs(prompts[rows], tokens).float())
            keys = drafting[-1].log() + noise[rows, tokens.shape[1]]
            drafted = torch.multinomial(drafting[-1], 1) if is_sampled else keys.argmax(1, keepdim=True)
            targets.append(world.target_probs(prompts[rows], tokens).float().log() + noise[rows, tokens.shape[1]])
            tokens = torch.cat([tokens, drafted], dim=1)
        last = world.target_probs(prompts[rows], tokens).float()
        bonus = torch.multinomial(last, 1)
        if is_noisy:
            bonus = (last.log() + noise[rows, tokens.shape[1]]).argmax(1, keepdim=True)
        if depth == 0:
            emitted = bonus
        else:
            counts, ones = [depth] * len(rows), torch.ones(len(rows))
            ends = torch.arange(1, len(rows) + 1, dtype=torch.int32) * depth
            settings = {"all_greedy": is_noisy, "all_random": not is_noisy, "temperature": ones, "generators": {}}
            metadata = SimpleNamespace(**settings, top_k=None, top_p=None)
            logits = torch.stack(targets, dim=1).flatten(0, 1)
            if applies_temperature:
                logits = apply_sampling_constraints(logits, ends, metadata)
            probs = torch.stack(drafting, dim=1).flatten(0, 1).contiguous() if is_sampled else None
            drafts = tokens[:, length:].flatten().int().contiguous()
            emitted = rejection_sample(drafts, counts, depth, ends, probs, logits, bonus.contiguous(), metadata).long()
        done[rows, length : length + depth + 1] = emitted
        lengths[rows] += (emitted >= 0).sum(1)
    return done[:, : world.num_tokens].clamp(0, world.vocab_size - 1)


def by_v2(world, prompts, seeds, *, is_shared):
    """Sample sequences token by token, by the rule of vLLM's V2 runner for drafts without distributions."""
    generator = torch.Generator().manual_seed(int(seeds[0]))

    def gumbel():
        return -(-torch.rand(len(prompts), world.vocab_size, generator=generator, dtype=torch.float64).log()).log()

    tokens = torch.empty(len(prompts), 0, dtype=torch.int64)
    for _ in range(world.num_tokens):
        target, draft, noise = world.target_probs(prompts, tokens), world.draft_probs(prompts, tokens), gumbel()
        drafted = (draft.log() + (noise if is_shared else gumbel())).argmax(1, keepdim=True)
        is_accepted = target.gather(1, drafted)[:, 0] > torch.rand(len(prompts), generator=generator)
        others = target.log().scatter(1, drafted, -torch.inf) + noise  # the target without the refused draft
        tokens = torch.cat([tokens, torch.where(is_accepted, drafted[:, 0], others.argmax(1))[:, None]], dim=1)
    return tokens


if __name__ == "__main__":
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    current_platform.register_triton_kernel_overrides()  # the kernels of CPUs, which an engine registers
    num = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    of_v1 = (v1_sampled_drafts, v1_likely_drafts, v1_with_temperatures, v1_greedy_with_noise)
    for sampler in (*of_v1, v2_own_noise, v2_shared_noise):
        print(lantern.audit(sampler, num=num), flush=True)
