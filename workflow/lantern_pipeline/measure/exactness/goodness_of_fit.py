"""Chi-square test of whole images: do the emitted tokens have the target's distribution?

A randomised probability integral transform maps each token to a *point* in [0, 1]. Codes, most probable first,
partition [0, 1] into intervals whose lengths are their probabilities. The point is uniform in the token's interval: if
the probabilities are 0.7 and 0.3, the second code gets a point between 0.7 and 1.

If each token is sampled from the target given the tokens before it, the points are uniform and independent (Rosenblatt
1952). If a method prefers probable or improbable codes, they are not. No distribution of drafts is needed, so the test
applies to any method.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import scipy.stats
import torch

from lantern.models.target import Target
from lantern.prompts import Prompt, TextEncoder
from lantern.sampling import SamplingConfig, filter_logits
from lantern_pipeline.measure.exactness.likelihood import walk_logits

NUM_BINS = 20  # of equal width, so that all have the same expected count


class ImageTest:
    """Chi-square test for images of the given prompts. `seed` is that of the random numbers in the intervals."""

    def __init__(self, target: Target, encoder: TextEncoder, prompts: Sequence[Prompt], seed: int) -> None:
        # float64: points depend on the order of two almost equally probable codes, which rounding must not decide.
        self.target = copy.deepcopy(target).double() if target.dtype == torch.float32 else target
        self.encoder, self.prompts, self.seed = encoder, prompts, seed
        self._found: dict[tuple, float] = {}  # p-values

    @torch.inference_mode()
    def p_value(self, codes: torch.Tensor, sampling: SamplingConfig) -> float:
        """Return the p-value for codes (images, tokens), in the order of the prompts, sampled above temperature 0."""
        # Several methods may have identical images.
        key = codes.cpu().numpy().tobytes(), sampling
        if key not in self._found:
            self._found[key] = self._test(codes, sampling)
        return self._found[key]

    def _test(self, codes: torch.Tensor, sampling: SamplingConfig) -> float:
        uniforms = torch.rand(codes.shape, generator=torch.Generator().manual_seed(self.seed))
        texts, counts = [prompt.text for prompt in self.prompts], torch.zeros(NUM_BINS)
        options = {"cfg_scale": sampling.cfg_scale, "batch_size": len(texts)}
        for rows, chosen, logits in walk_logits(self.target, self.encoder, codes, texts, **options):
            probs = filter_logits(logits, sampling).double().softmax(-1)
            points = points_of(probs, chosen, uniforms[rows].to(logits.device))
            # A point of exactly 1 belongs to the last bin.
            bins = (points * NUM_BINS).long().clamp(max=NUM_BINS - 1)
            counts += bins.flatten().bincount(minlength=NUM_BINS).cpu()
        return float(scipy.stats.chisquare(counts.numpy()).pvalue)


def points_of(probs: torch.Tensor, tokens: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Return the point of each token, (...), under `probs` (..., vocab), with uniform random numbers (...)."""
    # Codes of equal probability have no order, so they share one interval. It begins at the mass of better codes.
    own = probs.gather(-1, tokens[..., None])
    before, among = ((probs * is_there).sum(-1) for is_there in (probs > own, probs == own))
    return before + uniforms * among
