# %% [markdown]
# # A first look
#
# This notebook generates one image by three methods from the same noise. It
# then shows where each method saves forward passes of the target model, and
# which tokens LANTERN substitutes. It takes a few seconds on one CPU core.

# %%
import matplotlib.pyplot as plt

import lantern

PROMPT = "a small white ring above a large blue triangle on grass"
METHODS = {
    "autoregressive": {},
    "jacobi": {},
    "lantern": {"k": 20, "delta": 0.1},
}
model = lantern.load("embedded")
images = {
    method: model.generate(PROMPT, method=method, **parameters)
    for method, parameters in METHODS.items()
}

# %% [markdown]
# ## The images
#
# *Tokens per forward pass* is the number of tokens that a forward pass of the
# target emits on average. Autoregressive decoding emits one.

# %%
figure, all_axes = plt.subplots(1, 3, figsize=(8, 3), layout="constrained")
for axes, (method, found) in zip(all_axes, images.items(), strict=True):
    axes.imshow(found.pixels[0])
    speed = found.tokens_per_forward[0]
    axes.set_title(
        f"{method}\n{speed:.2f} tokens per forward pass", fontsize=10
    )
    axes.axis("off")

# %% [markdown]
# Jacobi is *exact*: it accepts a draft only if the draft equals the token that
# the target samples. Its image therefore has the tokens of autoregressive
# decoding. LANTERN is *relaxed*: it also accepts drafts that look similar. This
# cell compares their tokens with those of autoregressive decoding.

# %%
expected = images["autoregressive"].codes[0]
for method in ("jacobi", "lantern"):
    num_equal = int((images[method].codes[0] == expected).sum())
    print(f"{method}: {num_equal} of {len(expected)} tokens are equal")

# %% [markdown]
# ## Accepted lengths along the image
#
# Tokens fill the image line by line, from the top left. The colour of a token
# is the number of tokens that its forward pass emitted. The lengths differ
# within an image, because some regions are easier to predict than others. The
# embedded model's dynamic tree has at most two drafts on a path, so that
# LANTERN emits at most three tokens.

# %%
figure, all_axes = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
for axes, method in zip(all_axes, ("jacobi", "lantern"), strict=True):
    found = images[method]
    lengths = found.records.step_lengths[0].long()
    length_of_token = lengths.repeat_interleave(lengths)
    drawn = axes.imshow(
        length_of_token.view_as(found.grids[0]), vmin=1, vmax=10
    )
    axes.set_title(
        f"{method}: {int(found.steps[0])} forward passes", fontsize=10
    )
    axes.axis("off")
figure.colorbar(drawn, ax=all_axes, label="tokens of the forward pass")

# %% [markdown]
# ## Where LANTERN substitutes tokens
#
# A *substitution* is an emitted token that differs from the token that the
# target sampled. Red squares mark the substitutions in LANTERN's image. After a
# substitution the target sees another image so far. Later tokens may then
# differ from those of autoregressive decoding, too.

# %%
found = images["lantern"]
is_substituted = found.records.is_substituted[0].view_as(found.grids[0])
side = found.pixels.shape[1] // len(is_substituted)  # of a token, in pixels
figure, all_axes = plt.subplots(1, 2, figsize=(6, 3.2), layout="constrained")
for axes, method in zip(all_axes, ("autoregressive", "lantern"), strict=True):
    axes.imshow(images[method].pixels[0])
    axes.set_title(method, fontsize=10)
    axes.axis("off")
for line, column in is_substituted.nonzero().tolist():
    corner = (side * column - 0.5, side * line - 0.5)
    square = plt.Rectangle(corner, side, side, fill=False, edgecolor="red")
    all_axes[1].add_patch(square)
num_substituted = int(is_substituted.sum())
print(f"{num_substituted} of {is_substituted.numel()} tokens are substitutions")
