"""Do whole images follow the target's distribution? A chi-square test that needs no draft's distribution: it fits any
method.
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
    """Tests images of the same prompts; those that methods share are tested once. `seed` is of the random parts of the
    points.

    A target in float32 is run in float64: which of two almost equally probable codes is the likelier one would else
    depend on the kernels of the CPU, and a token of such a code falls elsewhere then.
    """

    def __init__(self, target: Target, encoder: TextEncoder, prompts: Sequence[Prompt], seed: int) -> None:
        self.target = copy.deepcopy(target).double() if target.dtype == torch.float32 else target
        self.encoder, self.prompts, self.seed = encoder, prompts, seed
        self._found: dict[tuple, float] = {}

    @torch.inference_mode()
    def p_value(self, codes: torch.Tensor, sampling: SamplingConfig) -> float:
        """The p-value of images, `codes` (images, tokens): the probability that samples of the target, drawn as they
        were, look as unlike the target's as these do.
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
    """Where tokens (...) fall in [0, 1] if the codes, likeliest first, share it out by `probs` (..., vocab): behind the
    likelier codes, at a random point of their own share (and that of equals).

    Tokens that are drawn from `probs`, each given those before it, fall anywhere alike and independently (Rosenblatt
    1952); those of a method that prefers likely or unlikely codes do not.
    """
    own = probs.gather(-1, tokens[..., None])
    before, among = ((probs * is_there).sum(-1) for is_there in (probs > own, probs == own))
    return before + uniforms * among
