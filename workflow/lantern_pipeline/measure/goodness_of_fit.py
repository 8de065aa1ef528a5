"""Chi-square test of whole images: do the emitted tokens have the target's distribution?

The test does not need the distribution of the drafts, so it applies to any method.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import scipy.stats
import torch

from lantern.models.target import Target
from lantern.prompts import Prompt
from lantern.sampling import SamplingConfig, filter_logits
from lantern.text_encoders.base import TextEncoder
from lantern_pipeline.measure.likelihood import walk_logits

NUM_BINS = 20


class ImageTest:
    """Test whether the tokens of images have the target's distribution, given their prompts.

    Each token is mapped to a point in [0, 1], see `points_of`. A chi-square test checks whether the points are uniform.
    A float32 target is run in float64, because the order of two almost equally probable codes affects their points.
    This order must not depend on rounding. If several methods have identical images, these are tested only once.

    Attributes:
        target: the target model.
        encoder: text encoder of the target.
        prompts: prompts of the images.
        seed: random seed of the uniform numbers that `points_of` uses.
    """

    def __init__(self, target: Target, encoder: TextEncoder, prompts: Sequence[Prompt], seed: int) -> None:
        self.target = copy.deepcopy(target).double() if target.dtype == torch.float32 else target
        self.encoder, self.prompts, self.seed = encoder, prompts, seed
        self._found: dict[tuple, float] = {}

    @torch.inference_mode()
    def p_value(self, codes: torch.Tensor, sampling: SamplingConfig) -> float:
        """Return the p-value of the chi-square test of some images.

        It is the probability that images sampled from the target would deviate from its distribution at least as much
        as these images do.

        Args:
            codes: tokens of the images, (images, tokens), in the order of the prompts.
            sampling: sampling settings of the images, with a temperature above 0.
        """
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
            bins = (points * NUM_BINS).long().clamp(max=NUM_BINS - 1)
            counts += bins.flatten().bincount(minlength=NUM_BINS).cpu()
        return float(scipy.stats.chisquare(counts.numpy()).pvalue)


def points_of(probs: torch.Tensor, tokens: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Map tokens to [0, 1] by a randomised probability integral transform.

    Codes, most probable first, partition [0, 1] into intervals whose lengths are their probabilities. The point of a
    token is uniform in its interval. For example, if the probabilities are 0.7 and 0.3, the second code gets a point
    between 0.7 and 1. Codes of equal probability share one interval.

    If each token is sampled from `probs` given the tokens before it, the points are uniform and independent (Rosenblatt
    1952). If a method prefers probable or improbable codes, its points are not uniform.

    Args:
        probs: the target's distribution of each token, (..., vocab).
        tokens: int64 (...).
        uniforms: uniform random numbers, (...).

    Returns:
        Points, (...).
    """
    own = probs.gather(-1, tokens[..., None])
    before, among = ((probs * is_there).sum(-1) for is_there in (probs > own, probs == own))
    return before + uniforms * among
