"""Goodness-of-fit test of whole images against the target's distribution.

A chi-square test compares them. It needs no draft distribution, so it applies to any method.
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
    """Test of the images of one set of prompts. Images that several methods share are tested once.

    A float32 target is run in float64. Otherwise rounding in the CPU's kernels would decide which of two almost equally
    probable codes comes first, and with it the point of a token.

    Attributes:
        seed: random seed of the points.
    """

    def __init__(self, target: Target, encoder: TextEncoder, prompts: Sequence[Prompt], seed: int) -> None:
        self.target = copy.deepcopy(target).double() if target.dtype == torch.float32 else target
        self.encoder, self.prompts, self.seed = encoder, prompts, seed
        self._found: dict[tuple, float] = {}

    @torch.inference_mode()
    def p_value(self, codes: torch.Tensor, sampling: SamplingConfig) -> float:
        """Return the p-value of images, `codes` (images, tokens).

        It is the probability that samples of the target, generated with the same settings, fit the target as badly as
        these images or worse.
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

    Codes, most probable first, partition [0, 1] into intervals of length `probs`. The point of a token is uniform in
    its interval. Codes of equal probability share one interval.

    If each token is sampled from `probs` given the tokens before it, the points are uniform and independent (Rosenblatt
    1952). A method that prefers probable or improbable codes gives other points.

    Args:
        probs: (..., vocab).
        tokens: int64 (...).
        uniforms: uniform random numbers, (...).
    """
    own = probs.gather(-1, tokens[..., None])
    before, among = ((probs * is_there).sum(-1) for is_there in (probs > own, probs == own))
    return before + uniforms * among
