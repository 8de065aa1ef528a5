# %% [markdown]
# # Your own acceptance in twenty lines
#
# This notebook writes a relaxed acceptance and compares it with LANTERN++. It measures speed in forward passes, negative
# log-likelihood (NLL) and total variation (TV). It takes half a minute on one CPU core.

# %%
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt

import lantern
from lantern.likelihood import token_log_probs

# %% [markdown]
# ## The acceptance
#
# A draft `x` that was sampled from `p` is accepted with probability `min(1, s(x) / p(x))`. Exact decoding has
# `s(x) = t(x)`, the probability of `x` under the target. LANTERN++ adds the probabilities of similar codes, so that
# `s(x)` is at most `lambda_ t(x)`. *Lenience* (Leviathan et al. 2023, arXiv 2211.17192) takes `factor * t(x)` for every
# draft, whether there are similar codes or not. Which one costs less for the same speed?
#
# An acceptance is a class in a file, here in a temporary folder. Save yours next to your code.

# %%
LENIENT = '''
from lantern.acceptance.base import Acceptance
from lantern.parameters import Parameter


class Lenient(Acceptance):
    """s(x) = factor * t(x)."""

    parameters = {"factor": Parameter("f", "factor of the target's probability", 1)}
    drafts = ("sampled", "sjd")
    paper = "Leviathan et al. 2023, arXiv 2211.17192"

    def relaxed_prob(self, probs, draft_probs, tokens):
        return self.factor * probs.gather(-1, tokens)
'''
folder = tempfile.mkdtemp()
Path(folder, "lenient.py").write_text(LENIENT)
sys.path.append(folder)

# %% [markdown]
# ## Speed and likelihood on images
#
# Both acceptances get the same drafts. NLL is computed without the target's top-k filter. With the filter, a token of
# LANTERN++ may have probability 0. All methods share the noise of a prompt, so that their NLLs are compared in pairs.

# %%
PROMPTS = [
    f"a large {colour} {shape} on grass"
    for colour in ("red", "yellow", "green", "blue")
    for shape in ("circle", "square", "ring")
]
FACTORS = (1.5, 2, 5)
model = lantern.load("embedded")
unfiltered = replace(model.sampling, top_k=0)


def nll_of(images):
    """Return the mean NLL of each image, in nats per token, float32 (images,)."""
    log_probs = token_log_probs(model.models.target, model.encoder, PROMPTS, images.codes, unfiltered)
    return -log_probs.mean(dim=1)


expected = nll_of(model.generate(PROMPTS, method="autoregressive"))


def measure(method, **parts):
    """Return tokens per forward pass, NLL added to autoregressive decoding, and the standard error of the latter."""
    images = model.generate(PROMPTS, method=method, **parts)
    added = nll_of(images) - expected
    return float(images.tokens_per_forward.mean()), float(added.mean()), float(added.std() / len(added) ** 0.5)


on_images = {
    "Lenient": [measure("eagle1", acceptance="lenient:Lenient", factor=factor) for factor in FACTORS],
    "LANTERN++": [measure("lantern_pp", k=10, lambda_=factor) for factor in FACTORS],
}

# %% [markdown]
# ## Total variation in a small world
#
# TV is the distance between the distributions of emitted and of target tokens. `lantern.audit` measures it in a *world*
# that is so small that all sequences can be listed ([details](../audit.md)). The numbers hold for whole sequences of
# this world and not for images, but the order of two acceptances is informative.

# %%
in_world = {
    "Lenient": [lantern.audit("lenient:Lenient", factor=factor, tree="chain3", num=4_000) for factor in FACTORS],
    "LANTERN++": [lantern.audit("lantern_pp", k=2, lambda_=factor, tree="chain3", num=4_000) for factor in FACTORS],
}

# %% [markdown]
# ## Result
#
# *Factor* is `factor` of Lenient and `lambda_` of LANTERN++. Further right is faster, lower is closer to the target. Error
# bars of NLL are standard errors over prompts; those of TV are 95 % intervals. More prompts give smaller ones.

# %%
print(f"{'acceptance':<11}{'factor':>7}{'tokens / forward':>18}{'NLL added':>17}  TV in the world")
for name, rows in on_images.items():
    for factor, (speed, added, error), audit in zip(FACTORS, rows, in_world[name], strict=True):
        print(f"{name:<11}{factor:>7}{speed:>18.2f}{added:>10.2f} ± {error:.2f}  {audit.total_variation}")

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
for name, rows in on_images.items():
    speeds, added, errors = zip(*rows, strict=True)
    left.errorbar(speeds, added, yerr=errors, marker="o", label=name)
    found = [audit.total_variation for audit in in_world[name]]
    ends = [[tv.value - tv.low for tv in found], [tv.high - tv.value for tv in found]]
    right.errorbar(FACTORS, [tv.value for tv in found], yerr=ends, marker="o", label=name)
left.set_xlabel("tokens per forward pass")
left.set_ylabel("NLL added (nats per token)")
right.set_xlabel("factor")
right.set_ylabel("TV in the world")
left.legend()
