# %% [markdown]
# # Is my sampler lossless?
#
# Speculative sampling is lossless if its tokens have the distribution of the
# target. This notebook writes a right and a wrong sampler, and lets
# `lantern.audit` find the mistake. It takes a few seconds on one CPU core. [The
# page about audits](../audit.md) explains the numbers.

# %%
from textwrap import fill

import matplotlib.pyplot as plt
import torch

import lantern
from lantern_audit.world import make_world

# %% [markdown]
# ## Two samplers
#
# A sampler is a function of a *world*, prompts and seeds. The world has the
# probabilities of a small target and of its draft model. Both samplers accept a
# draft with the right probability. After a rejection, the right one samples
# from `max(0, target - draft)`, and the wrong one from the target.


# %%
def sample(world, prompts, seeds, residual):
    """Sample one sequence per prompt, int64 (batch, num_tokens).

    Args:
        world: target and draft model.
        prompts: prompts, int64 (batch,).
        seeds: seeds of the sequences, int64 (batch,).
        residual: function of the target and the draft distribution. It returns
            the distribution to sample from after a rejection.
    """
    generator = torch.Generator().manual_seed(int(seeds[0]))
    tokens = torch.empty(len(prompts), 0, dtype=torch.int64)
    for _ in range(world.num_tokens):
        target = world.target_probs(prompts, tokens)
        draft = world.draft_probs(prompts, tokens)
        drafts = torch.multinomial(draft, 1, generator=generator)
        ratio = (target / draft).gather(1, drafts)
        is_accepted = torch.rand(drafts.shape, generator=generator) < ratio
        left = residual(target, draft)
        others = torch.multinomial(left, 1, generator=generator)
        emitted = torch.where(is_accepted, drafts, others)
        tokens = torch.cat([tokens, emitted], dim=1)
    return tokens


def right(world, prompts, seeds):
    """Sample from the residual distribution after a rejection."""

    def residual(target, draft):
        return (target - draft).clamp(min=0)

    return sample(world, prompts, seeds, residual)


def wrong(world, prompts, seeds):
    """Sample from the target after a rejection, which is a mistake."""

    def residual(target, draft):
        return target

    return sample(world, prompts, seeds, residual)


# %% [markdown]
# ## The audit
#
# It counts 50,000 sequences and compares them with the list of all sequences.

# %%
audits = {
    sampler.__name__: lantern.audit(sampler) for sampler in (right, wrong)
}
for audit in audits.values():
    print(fill(audit.sentence, 80), "\n")

# %% [markdown]
# ## The mistake in one picture
#
# The first token of a sequence shows the mistake: the wrong sampler emits codes
# of the draft model too often.

# %%
world = make_world()
prompts = torch.zeros(50_000, dtype=torch.int64)
seeds = torch.arange(len(prompts))
nothing = torch.empty(1, 0, dtype=torch.int64)  # no tokens so far
bars = {
    "draft model": world.draft_probs(prompts[:1], nothing)[0],
    "target": world.target_probs(prompts[:1], nothing)[0],
}
for sampler in (right, wrong):
    first = sampler(world, prompts, seeds)[:, 0]
    counts = first.bincount(minlength=world.vocab_size)
    bars[sampler.__name__] = counts / len(first)

figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
codes = torch.arange(world.vocab_size)
for index, (name, heights) in enumerate(bars.items()):
    axes.bar(codes + 0.2 * (index - 1.5), heights, width=0.18, label=name)
axes.set_xlabel("code of the first token")
axes.set_ylabel("probability")
axes.legend()

# %% [markdown]
# ## How many samples are enough?
#
# An audit finds a total variation (TV) above the dashed line with a probability
# of at least 90 %. The error bars are 95 % intervals of the TV of the wrong
# sampler. With few samples the estimate is too low.

# %%
NUMBERS = (500, 2_000, 8_000, 32_000)
found = [lantern.audit(wrong, num=num) for num in NUMBERS]
estimates = [audit.total_variation for audit in found]
values = [tv.value for tv in estimates]
below = [tv.value - tv.low for tv in estimates]
above = [tv.high - tv.value for tv in estimates]
detectable = [audit.detectable for audit in found]
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
axes.errorbar(
    NUMBERS, values, [below, above], marker="o", label="wrong sampler"
)
axes.plot(NUMBERS, detectable, "k--", label="smallest TV that is found")
axes.set_xscale("log")
axes.set_xlabel("sequences")
axes.set_ylabel("total variation")
axes.legend()

# %% [markdown]
# ## Methods of Lantern
#
# Jacobi is exact, and LANTERN is relaxed on purpose.

# %%
METHODS = {"jacobi": {}, "lantern": {"k": 2, "delta": 0.1}}
for method, parameters in METHODS.items():
    audit = lantern.audit(method, num=10_000, **parameters)
    print(fill(audit.sentence, 80), "\n")
