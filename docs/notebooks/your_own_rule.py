# %% [markdown]
# # Your own acceptance in twenty lines
#
# This notebook writes a relaxed acceptance and compares it with LANTERN++. It
# measures speed in forward passes, negative log-likelihood (NLL) and total
# variation (TV). It takes half a minute on one CPU core.

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
# A draft `x` that was sampled from `p` is accepted with probability `min(1,
# s(x) / p(x))`. Exact decoding has `s(x) = t(x)`, the probability of `x` under
# the target. LANTERN++ adds the probabilities of similar codes, so that `s(x)`
# is at most `lambda_ t(x)`. *Lenience* (Leviathan et al. 2023, arXiv
# 2211.17192) takes `factor * t(x)` for every draft, whether there are similar
# codes or not. Which one costs less for the same speed?
#
# An acceptance is a class in a file, here in a temporary folder. Save yours
# next to your code.

# %%
LENIENT = '''
from lantern.acceptance.base import Acceptance
from lantern.parameters import Parameter


class Lenient(Acceptance):
    """s(x) = factor * t(x)."""

    parameters = {"factor": Parameter("f", "factor of t(x)", 1)}
    needs = ("sampled",)
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
# Both acceptances get the same drafts. NLL is computed without the target's
# top-k filter. With the filter, a token of LANTERN++ may have probability 0.
# All methods share the noise of a prompt, so that their NLLs are compared in
# pairs.

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
    """Return the mean NLL of each image in nats, float32 (images,)."""
    target, encoder = model.models.target, model.encoder
    log_probs = token_log_probs(
        target, encoder, PROMPTS, images.codes, unfiltered
    )
    return -log_probs.mean(dim=1)


expected = nll_of(model.generate(PROMPTS, method="autoregressive"))


def measure(method, **parts):
    """Return tokens per forward pass, added NLL and its standard error."""
    images = model.generate(PROMPTS, method=method, **parts)
    added = nll_of(images) - expected
    speed = images.tokens_per_forward.mean()
    error = added.std() / len(added) ** 0.5
    return float(speed), float(added.mean()), float(error)


on_images = {"Lenient": [], "LANTERN++": []}
for factor in FACTORS:
    lenient = measure("eagle1", acceptance="lenient:Lenient", factor=factor)
    on_images["Lenient"].append(lenient)
    on_images["LANTERN++"].append(measure("lantern_pp", k=10, lambda_=factor))

# %% [markdown]
# ## Total variation in a small world
#
# TV is the distance between the distributions of emitted and of target tokens.
# `lantern.audit` measures it in a *world* that is so small that all sequences
# can be listed ([details](../audit.md)). The numbers hold for whole sequences
# of this world, not for images.

# %%
in_world = {"Lenient": [], "LANTERN++": []}
for factor in FACTORS:
    options = {"tree": "chain3", "num": 4_000}
    lenient = lantern.audit("lenient:Lenient", factor=factor, **options)
    lantern_pp = lantern.audit("lantern_pp", k=2, lambda_=factor, **options)
    in_world["Lenient"].append(lenient.total_variation)
    in_world["LANTERN++"].append(lantern_pp.total_variation)

# %% [markdown]
# ## Result
#
# *Factor* is `factor` of Lenient and `lambda_` of LANTERN++. Further right is
# faster, lower is closer to the target. Error bars of NLL are standard errors
# over prompts; those of TV are 95 % intervals. More prompts give smaller ones.

# %%
print("acceptance  factor  tokens / forward     NLL added  TV in the world")
for name, rows in on_images.items():
    for factor, row, tv in zip(FACTORS, rows, in_world[name], strict=True):
        speed, added, error = row
        numbers = f"{factor:>8}{speed:>18.2f}{added:>7.2f} ± {error:.2f}"
        print(f"{name:<10}{numbers}  {tv}")

figure, (left, right) = plt.subplots(
    1, 2, figsize=(8, 3.2), layout="constrained"
)
for name, rows in on_images.items():
    speeds, added, errors = zip(*rows, strict=True)
    left.errorbar(speeds, added, errors, marker="o", label=name)
    values = [tv.value for tv in in_world[name]]
    below = [tv.value - tv.low for tv in in_world[name]]
    above = [tv.high - tv.value for tv in in_world[name]]
    right.errorbar(FACTORS, values, [below, above], marker="o", label=name)
left.set_xlabel("tokens per forward pass")
left.set_ylabel("NLL added (nats per token)")
right.set_xlabel("factor")
right.set_ylabel("TV in the world")
right.legend()
