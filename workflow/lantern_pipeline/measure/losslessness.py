"""Comparison of the tokens that a method emits with the tokens that the target samples.

Two questions are answered. *Exactness*: are the tokens equal to those of autoregressive decoding with the same noise?
*Substitutions*: which tokens did relaxed decoding emit instead of the token that the target sampled at that position?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from lantern.models.target import Target
from lantern.noise import gumbel_field
from lantern.prompts import Prompt
from lantern.records import GenerationRecords
from lantern.sampling import SamplingConfig, filter_logits
from lantern.text_encoders.base import TextEncoder
from lantern_pipeline.measure.intervals import mean_with_interval
from lantern_pipeline.measure.likelihood import walk_logits

NEAR_TIE_MARGIN = 1e-4  # nats; if the gap between two tokens is smaller, rounding may decide which of them is sampled


@dataclass(frozen=True)
class Equality:
    """Result of comparing each image with the autoregressive image of the same prompt and noise.

    A *near-tie* is a difference that rounding explains. At the first different token, the two largest keys of
    autoregressive decoding differed by less than NEAR_TIE_MARGIN. The key of a code is its log-probability plus Gumbel
    noise.

    Attributes:
        is_equal: whether all codes are equal, bool (images,).
        is_near_tie: whether codes differ, and the first difference is a near-tie, bool (images,).
        first_difference: position of the first different token, int64 (images,). The number of tokens if there is none.
        margin_at_difference: difference between the two largest keys at the first difference, in nats, float (images,).
            nan if all codes are equal.
    """

    is_equal: torch.Tensor
    is_near_tie: torch.Tensor
    first_difference: torch.Tensor
    margin_at_difference: torch.Tensor

    @property
    def num_near_ties(self) -> int:
        """Number of images that differ only because rounding decided between two tokens with almost equal keys."""
        return int(self.is_near_tie.sum())

    @property
    def share_equal(self) -> float:
        """Share of equal images. Images that differ only because of rounding are left out. nan if no image remains."""
        counted = int((~self.is_near_tie).sum())
        return float(self.is_equal.sum()) / counted if counted else float("nan")


def compare_with_autoregressive(
    codes: torch.Tensor, autoregressive_codes: torch.Tensor, margins: torch.Tensor
) -> Equality:
    """Compare images with those of autoregressive decoding for the same prompts and noise.

    A forward pass over one token and one over several tokens differ in the last bits, due to rounding. If the two
    largest keys of autoregressive decoding are almost equal, rounding may decide which token is sampled. All later
    tokens may then differ, although the method is exact. So only the *first* difference can be a near-tie, a difference
    that rounding explains.

    Args:
        codes: codes of a method, (images, tokens).
        autoregressive_codes: codes of autoregressive decoding, (images, tokens).
        margins: difference between the two largest keys (log-probability plus noise) of autoregressive decoding at each
            token, in nats, (images, tokens).
    """
    num_tokens = codes.shape[1]
    differs = codes.long() != autoregressive_codes.long()  # (images, tokens)
    is_equal = ~differs.any(dim=1)
    first = torch.where(is_equal, num_tokens, differs.to(torch.int8).argmax(dim=1))
    margin_there = margins.gather(1, first.clamp(max=num_tokens - 1)[:, None]).squeeze(1)
    margin = margin_there.masked_fill(is_equal, float("nan"))
    return Equality(is_equal, ~is_equal & (margin_there < NEAR_TIE_MARGIN), first, margin)


@torch.inference_mode()
def drawn_tokens(
    target_model: Target,
    encoder: TextEncoder,
    prompts: Sequence[Prompt],
    codes: torch.Tensor,
    sampling: SamplingConfig,
    run_seed: int,
) -> torch.Tensor:
    """Sample the target's token at every position of given images, with the noise of those images.

    A relaxed method may have emitted another token at a position (a substitution). The result shows at which positions.
    If the two largest keys are equal up to rounding, a token may differ from the one sampled during decoding.

    Args:
        target_model: the target.
        encoder: text encoder of the target.
        prompts: one per image.
        codes: emitted codes, (images, tokens). The token at a position is sampled given the codes before it.
        sampling: sampling settings.
        run_seed: random seed of the noise.

    Returns:
        int64 (images, tokens), on the CPU.
    """
    texts = [prompt.text for prompt in prompts]
    options = {"cfg_scale": sampling.cfg_scale, "batch_size": len(prompts)}
    drawn = []
    for rows, _, logits in walk_logits(target_model, encoder, codes, texts, **options):
        if sampling.is_greedy:
            drawn.append(logits.argmax(-1).cpu())
            continue
        noise = [gumbel_field(run_seed, prompt.id, "target", *logits.shape[1:]) for prompt in prompts[rows]]
        drawn.append((filter_logits(logits, sampling) + torch.stack(noise).to(logits.device)).argmax(-1).cpu())
    return torch.cat(drawn)


def substitution_row(
    records: GenerationRecords, drawn: torch.Tensor, codebook: torch.Tensor, options: Mapping[str, int]
) -> dict[str, float]:
    """Measure how often a method emits another token than the target samples, and how different the two codes are.

    The method must sample the target's token at every position.

    Args:
        records: generated images of the method.
        drawn: tokens that the target samples at the same positions, from `drawn_tokens`, (images, tokens).
        codebook: code vectors, (vocab, code_dim).
        options: arguments num_resamples and seed of the bootstrap.

    Returns:
        Column -> value:

        - substitution_rate, with _low and _high: share of codes that are substitutions, and its 95 % interval over
          images. By the coupling inequality, it is an upper bound of the mean total variation between the emitted token
          and the target's token.
        - substitution_distance: mean Euclidean distance between the code vectors of the target's sample and of the
          emitted code, over all substitutions. nan if there are none.
    """
    is_code = records.codes < len(codebook)  # False for line-end tokens, which are certain and cannot be substituted
    rate = (records.is_substituted.double().sum(1) / is_code.sum(1)).numpy()
    rows = F.pad(codebook, (0, 0, 0, 1))
    distance = (rows[drawn] - rows[records.codes.long()]).norm(dim=-1)[records.is_substituted]
    return {
        **mean_with_interval("substitution_rate", rate, **options),
        "substitution_distance": float(distance.mean()) if len(distance) else np.nan,
    }
