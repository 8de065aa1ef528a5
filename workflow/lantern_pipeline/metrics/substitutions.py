"""Substitutions: tokens that relaxed decoding emitted in place of the one that the target drew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F

from lantern.models.target import TargetModel
from lantern.models.text import TextEncoder
from lantern.noise import gumbel_field
from lantern.prompts import Prompt
from lantern.records import GenerationRecords
from lantern.sampling import SamplingConfig, filter_logits
from lantern_pipeline.metrics.intervals import mean_with_interval
from lantern_pipeline.metrics.likelihood import walk_logits


@torch.inference_mode()
def drawn_tokens(
    target_model: TargetModel,
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
