"""Emitted tokens beside the target's: are they those of autoregressive decoding under the same noise (exactness as an
equality), and which ones did relaxed decoding emit in place of the one that the target drew (substitutions)?
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

NEAR_TIE_MARGIN = 1e-4  # nats, a gap below which two tokens count as tied by floating point


@dataclass(frozen=True)
class Equality:
    """Comparison of each image with the autoregressive one of the same prompt and noise."""

    is_equal: torch.Tensor  # (images,) bool, all codes are equal
    # (images,) bool, codes differ, and the first difference sits where the autoregressive decoder's two best candidates
    # were closer than the stated margin: a difference of rounding, not of the method
    is_near_tie: torch.Tensor
    # (images,) int64, position of the first difference; the number of tokens where there is none
    first_difference: torch.Tensor
    # (images,) float, the autoregressive decoder's margin there, nats; nan where there is none
    margin_at_difference: torch.Tensor

    @property
    def num_near_ties(self) -> int:
        """Images excepted from the share, because they first differ at a near-tie."""
        return int(self.is_near_tie.sum())

    @property
    def share_equal(self) -> float:
        """Share of equal images among those without a near-tie; nan when every image is excepted."""
        counted = int((~self.is_near_tie).sum())
        return float(self.is_equal.sum()) / counted if counted else float("nan")


def compare_with_autoregressive(
    codes: torch.Tensor, autoregressive_codes: torch.Tensor, margins: torch.Tensor
) -> Equality:
    """Compares codes (images, tokens) image by image with the autoregressive decoder's of the same prompts and noise.

    Batched and one-token forwards round differently in the last bits. Where the autoregressive decoder's two best
    perturbed log-probabilities are almost equal, either may win; everything after such a position then differs
    legitimately. Only the *first* difference can be excused in this way: where `margins` (images, tokens), the gap of
    these two in nats, is below NEAR_TIE_MARGIN.
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
    """The tokens that the target draws at every position of given images, int64 (images, tokens), with the images' own
    noise: `codes` (images, tokens) are what was emitted, hence the contexts; `run_seed` is of the noise fields. Where
    the two best candidates are within rounding, a token may differ from what decoding drew.
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
    """How often, and by how distant a code, for records of a method that draws the target's own token at every node.

    substitution_rate (share of codes, with _low and _high over images) is an upper bound of the TV between the
    distributions of the emitted token and of the target's, averaged over nodes, by the coupling inequality.
    substitution_distance is the mean euclidean distance in `codebook` (vocab, code_dim) between the tokens `drawn`
    (images, tokens) and the emitted ones, over substitutions; nan where there is none.
    """
    is_code = records.codes < len(codebook)  # what ends a line is certain, and is none
    rate = (records.is_substituted.double().sum(1) / is_code.sum(1)).numpy()
    rows = F.pad(codebook, (0, 0, 0, 1))
    distance = (rows[drawn] - rows[records.codes.long()]).norm(dim=-1)[records.is_substituted]
    return {
        **mean_with_interval("substitution_rate", rate, **options),
        "substitution_distance": float(distance.mean()) if len(distance) else np.nan,
    }
