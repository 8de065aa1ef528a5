"""Comparison of the tokens that a method emits with the tokens that the target samples.

*Exactness*: are the tokens equal to those of autoregressive decoding with the same noise? A forward pass over one token
and one over several tokens differ in the last bits. At a near-tie, rounding may therefore decide which token is
sampled. All later tokens may then differ, although the method is exact. So only the *first* difference of an image can
be explained by a near-tie.

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
from lantern.prompts import Prompt, TextEncoder
from lantern.records import GenerationRecords
from lantern.sampling import SamplingConfig, filter_logits
from lantern_pipeline.measure.exactness.likelihood import walk_logits
from lantern_pipeline.measure.intervals import mean_with_interval

NEAR_TIE_MARGIN = 1e-4  # nats; if the gap between two tokens is smaller, rounding may decide which of them is sampled


@dataclass(frozen=True)
class Equality:
    """Result of comparing each image with the autoregressive image of the same prompt and noise.

    Attributes:
        is_near_tie: whether codes differ, and the first difference is at a near-tie, bool (images,).
        first_difference: position of the first different token, int64 (images,). The number of tokens if there is none.
        margin_at_difference: margin at the first difference, in nats, (images,). nan if all codes are equal.
    """

    is_equal: torch.Tensor
    is_near_tie: torch.Tensor
    first_difference: torch.Tensor
    margin_at_difference: torch.Tensor

    @property
    def num_near_ties(self) -> int:
        """Number of images whose difference a near-tie explains."""
        return int(self.is_near_tie.sum())

    @property
    def share_equal(self) -> float:
        """Number of equal images divided by that of images without a near-tie. nan if no image remains."""
        counted = int((~self.is_near_tie).sum())
        return float(self.is_equal.sum()) / counted if counted else float("nan")


def compare_with_autoregressive(
    codes: torch.Tensor, autoregressive_codes: torch.Tensor, margins: torch.Tensor
) -> Equality:
    """Compare images with those of autoregressive decoding, whose margins are given. All are (images, tokens)."""
    num_tokens = codes.shape[1]
    differs = codes.long() != autoregressive_codes.long()  # (images, tokens)
    is_equal = ~differs.any(dim=1)
    # argmax of zeros and ones finds the first one.
    first = torch.where(is_equal, num_tokens, differs.to(torch.int8).argmax(dim=1))
    # Without a difference, `first` is behind the last token. The margin read instead is replaced by nan.
    margin_there = margins.gather(1, first.clamp(max=num_tokens - 1)[:, None]).squeeze(1)  # (images,)
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
    """Return the target's sample at every position of given images, with their noise, int64 (images, tokens).

    The token at a position is sampled given the emitted codes before it. At a near-tie it may differ from the token
    sampled during decoding.
    """
    texts = [prompt.text for prompt in prompts]
    options = {"cfg_scale": sampling.cfg_scale, "batch_size": len(prompts)}
    drawn = []
    for rows, _, logits in walk_logits(target_model, encoder, codes, texts, **options):
        if sampling.is_greedy:  # no noise
            drawn.append(logits.argmax(-1).cpu())
            continue
        # The numbers with which the images were decoded: seed, prompt id and stream are the same.
        noise = [gumbel_field(run_seed, prompt.id, "target", *logits.shape[1:]) for prompt in prompts[rows]]
        drawn.append((filter_logits(logits, sampling) + torch.stack(noise).to(logits.device)).argmax(-1).cpu())
    return torch.cat(drawn)


def substitution_row(
    records: GenerationRecords, drawn: torch.Tensor, codebook: torch.Tensor, options: Mapping[str, int]
) -> dict[str, float]:
    """Measure substitutions, where `drawn` are the target's samples.

    The result has two columns, the first with its 95 % interval over images. substitution_rate is the share of codes
    that are substitutions. By the coupling inequality, it is an upper bound of the mean TV between the emitted token
    and the target's token. substitution_distance is the mean Euclidean distance between the code vectors of the
    target's sample and of the emitted code, over all substitutions. nan if there are none.
    """
    is_code = records.codes < len(codebook)  # False for line-end tokens, which are certain and cannot be substituted
    rate = (records.is_substituted.double().sum(1) / is_code.sum(1)).numpy()
    # One more row, for the number of the line-end token.
    rows = F.pad(codebook, (0, 0, 0, 1))
    distance = (rows[drawn] - rows[records.codes.long()]).norm(dim=-1)[records.is_substituted]
    return {
        **mean_with_interval("substitution_rate", rate, **options),
        "substitution_distance": float(distance.mean()) if len(distance) else np.nan,
    }
