"""Comparison of emitted tokens with the target's.

*Exactness*: are the tokens equal to those of autoregressive decoding with the same noise? *Substitutions*: which tokens
did relaxed decoding emit instead of the token that the target sampled?
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

NEAR_TIE_MARGIN = 1e-4  # nats; two tokens with a smaller gap count as tied up to rounding


@dataclass(frozen=True)
class Equality:
    """Comparison of each image with the autoregressive one of the same prompt and noise."""

    is_equal: torch.Tensor  # (images,) bool, all codes are equal
    # (images,) bool, codes differ, and at the first difference the two best candidates of autoregressive decoding were
    # closer than NEAR_TIE_MARGIN: a difference of rounding, not of the method
    is_near_tie: torch.Tensor
    # (images,) int64, position of the first difference; the number of tokens if there is none
    first_difference: torch.Tensor
    # (images,) float, margin of autoregressive decoding at that position, nats; nan if there is no difference
    margin_at_difference: torch.Tensor

    @property
    def num_near_ties(self) -> int:
        """Number of images that first differ at a near-tie; `share_equal` does not count them."""
        return int(self.is_near_tie.sum())

    @property
    def share_equal(self) -> float:
        """Share of equal images among those without a near-tie; nan if no image is left."""
        counted = int((~self.is_near_tie).sum())
        return float(self.is_equal.sum()) / counted if counted else float("nan")


def compare_with_autoregressive(
    codes: torch.Tensor, autoregressive_codes: torch.Tensor, margins: torch.Tensor
) -> Equality:
    """Compare images with those of autoregressive decoding of the same prompts and noise.

    Forward passes over one and over several tokens round differently in the last bits. If the two best candidates of
    autoregressive decoding are almost equal, either may win, and all later tokens then differ legitimately. Only the
    *first* difference can be excused in this way, if its margin is below NEAR_TIE_MARGIN.

    Args:
        codes: codes of a method, (images, tokens).
        autoregressive_codes: codes of autoregressive decoding, (images, tokens).
        margins: gap between the two highest perturbed log-probabilities of autoregressive decoding, in nats, (images,
            tokens).
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

    If the two best candidates are equal up to rounding, a token may differ from the one sampled during decoding.

    Args:
        target_model: the target.
        encoder: text encoder of the target.
        prompts: one per image.
        codes: emitted codes, (images, tokens); they are the contexts.
        sampling: sampling settings.
        run_seed: seed of the noise.

    Returns:
        int64 (images, tokens).
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
    """Measure how often a method replaces the target's sample, and by how distant a code.

    The method must sample the target's token at every node.

    Args:
        records: records of the method.
        drawn: tokens that the target sampled, (images, tokens).
        codebook: code vectors, (vocab, code_dim).
        options: num_resamples and seed of the bootstrap.

    Returns:
        substitution_rate: share of codes that are substitutions, with _low and _high over images. By the coupling
        inequality it is an upper bound of the TV between the emitted token and the target's token, averaged over nodes.
        substitution_distance: mean Euclidean distance between the target's sample and the emitted code, over
        substitutions, or nan without any.
    """
    is_code = records.codes < len(codebook)  # line ends are certain and are no codes
    rate = (records.is_substituted.double().sum(1) / is_code.sum(1)).numpy()
    rows = F.pad(codebook, (0, 0, 0, 1))
    distance = (rows[drawn] - rows[records.codes.long()]).norm(dim=-1)[records.is_substituted]
    return {
        **mean_with_interval("substitution_rate", rate, **options),
        "substitution_distance": float(distance.mean()) if len(distance) else np.nan,
    }
