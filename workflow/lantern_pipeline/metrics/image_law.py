"""Do whole images follow the target's law? A chi-square test that needs no draft's distribution: it fits any method."""

from __future__ import annotations

from collections.abc import Sequence

import scipy.stats
import torch

from lantern.models.target import TargetModel
from lantern.models.text import TextEncoder
from lantern.prompts import Prompt
from lantern.sampling import SamplingConfig, filter_logits
from lantern_pipeline.metrics.likelihood import walk_logits

NUM_BINS = 20


@torch.inference_mode()
def p_value_of_images(
    target_model: TargetModel,
    encoder: TextEncoder,
    prompts: Sequence[Prompt],
    codes: torch.Tensor,
    sampling: SamplingConfig,
    seed: int,
) -> float:
    """The p-value of images, `codes` (images, tokens): the probability that draws of the target, sampled as they were,
    look as unlike the target's as these do. `seed` is of the random parts of the points.
    """
    uniforms = torch.rand(codes.shape, generator=torch.Generator().manual_seed(seed))
    texts, counts = [prompt.text for prompt in prompts], torch.zeros(NUM_BINS)
    options = {"cfg_scale": sampling.cfg_scale, "batch_size": len(prompts)}
    for rows, chosen, logits in walk_logits(target_model, encoder, codes, texts, **options):
        points = points_of(filter_logits(logits, sampling).softmax(-1), chosen, uniforms[rows].to(logits.device))
        bins = (points * NUM_BINS).long().clamp(max=NUM_BINS - 1)
        counts += bins.flatten().bincount(minlength=NUM_BINS).cpu()
    return float(scipy.stats.chisquare(counts.numpy()).pvalue)


def points_of(probs: torch.Tensor, tokens: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Where tokens (...) fall in [0, 1] if the codes, likeliest first, share it out by `probs` (..., vocab): behind the
    likelier codes, at a random place of their own share (and that of equals).

    Tokens that are drawn from `probs`, each given those before it, fall anywhere alike and independently (Rosenblatt
    1952); those of a method that prefers likely or unlikely codes do not.
    """
    own = probs.gather(-1, tokens[..., None])
    before, among = ((probs * is_there).sum(-1) for is_there in (probs > own, probs == own))
    return before + uniforms * among
