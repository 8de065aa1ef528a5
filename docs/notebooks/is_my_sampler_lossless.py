# %% [markdown]
# # Is my sampler lossless?
#
# Speculative sampling is lossless if its tokens have the distribution of the target. This notebook writes a right and a
# wrong sampler, and lets `lantern.audit` find the mistake. It takes a few seconds on one CPU core.
# [The page about audits](../audit.md) explains the numbers.

# %%
import matplotlib.pyplot as plt
import torch

import lantern
from lantern.auditing.world import make_world

# %% [markdown]
# ## Two samplers
#
# A sampler is a function of a *world*, prompts and seeds. The world has the probabilities of a small target and of its
# draft model. Both samplers accept a draft with the right probability. After a rejection, the right one samples from
# `max(0, target - draft)`, and the wrong one from the target.


# %%
def sample(world, prompts, seeds, residual):
    """Sample one sequence per prompt by speculative sampling, int64 (batch, num_tokens).

    Args:
        world: target and draft model.
        prompts: prompts, int64 (batch,).
        seeds: seeds of the sequences, int64 (batch,).
        residual: function of the target and the draft distribution, which returns the one to sample from after a
            rejection.
    """
    generator = torch.Generator().manual_seed(int(seeds[0]))
    tokens = torch.empty(len(prompts), 0, dtype=torch.int64)
    for _ in range(world.num_tokens):
        target = world.target_probs(prompts, tokens)
        draft = world.draft_probs(prompts, tokens)
        drafts = torch.multinomial(draft, 1, generator=generator)
        is_accepted = torch.rand(drafts.shape, generator=generator) < (target / draft).gather(1, drafts)
        others = torch.multinomial(residual(target, draft), 1, generator=generator)
        tokens = torch.cat([tokens, torch.where(is_accepted, drafts, others)], dim=1)
    return tokens


def right(world, prompts, seeds):
    """Sample from the residual distribution after a rejection."""
    return sample(world, prompts, seeds, lambda target, draft: (target - draft).clamp(min=0))


def wrong(world, prompts, seeds):
    """Sample from the target after a rejection, which is a mistake."""
    return sample(world, prompts, seeds, lambda target, draft: target)


# %% [markdown]
# ## The audit
#
# It counts 50,000 sequences and compares them with the list of all sequences.

# %%
audits = {sampler.__name__: lantern.audit(sampler) for sampler in (right, wrong)}
for audit in audits.values():
    print(audit, end="\n\n")

# %% [markdown]
# ## The mistake in one picture
#
# The first token of a sequence shows the mistake: the wrong sampler emits probable codes of the draft model too often.

# %%
world = make_world()
prompts = torch.zeros(50_000, dtype=torch.int64)
seeds = torch.arange(len(prompts))
bars = {"target": world.target_probs(prompts[:1], prompts[:1, None][:, :0])[0]}
for sampler in (right, wrong):
    first = sampler(world, prompts, seeds)[:, 0]
    bars[sampler.__name__] = first.bincount(minlength=world.vocab_size) / len(first)

figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
for index, (name, heights) in enumerate(bars.items()):
    axes.bar(torch.arange(world.vocab_size) + 0.27 * (index - 1), heights, width=0.25, label=name)
axes.set_xlabel("code of the first token")
axes.set_ylabel("probability")
axes.legend()

# %% [markdown]
# ## How many samples are enough?
#
# An audit finds a total variation (TV) above the dashed line with a probability of at least 90 %. The error bars are
# 95 % intervals of the TV of the wrong sampler.

# %%
NUMBERS = (500, 2_000, 8_000, 32_000)
found = [lantern.audit(wrong, num=num) for num in NUMBERS]
estimates = [audit.total_variation for audit in found]
ends = [[tv.value - tv.low for tv in estimates], [tv.high - tv.value for tv in estimates]]
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
axes.errorbar(NUMBERS, [tv.value for tv in estimates], yerr=ends, marker="o", label="wrong sampler")
axes.plot(NUMBERS, [audit.detectable for audit in found], "k--", label="smallest TV that is found")
axes.set_xscale("log")
axes.set_xlabel("sequences")
axes.set_ylabel("total variation")
axes.legend()

# %% [markdown]
# ## Methods of Lantern
#
# Jacobi is exact, and LANTERN is relaxed on purpose.

# %%
for method, parameters in {"jacobi": {}, "lantern": {"k": 2, "delta": 0.1}}.items():
    print(lantern.audit(method, num=10_000, **parameters).sentence)
