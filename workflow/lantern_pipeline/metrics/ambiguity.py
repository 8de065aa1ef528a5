"""Token-selection ambiguity: how much probability do the target's best one and best ten next tokens hold?

A text model is nearly sure of most tokens. A visual one spreads its mass over many look-alike codes; that is what
starves drafts of acceptance, and what relaxed decoding answers.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor

from lantern.models.target import TargetModel
from lantern.models.text import TextEncoder
from lantern_pipeline.metrics.likelihood import select_codes, walk_logits


def top_masses(logits: Tensor, num_best: int = 10) -> tuple[Tensor, Tensor]:
    """Computes the probabilities of the best token and of the best few, each (...) float32, of logits (..., vocab)."""
    best = logits.float().softmax(dim=-1).topk(min(num_best, logits.shape[-1]), dim=-1).values
    return best[..., 0], best.sum(dim=-1)


@torch.inference_mode()
def measure_ambiguity(
    target_model: TargetModel,
    text_encoder: TextEncoder,
    codes: Tensor,
    texts: Sequence[str],
    *,
    cfg_scales: Sequence[float],
    batch_size: int = 64,
) -> pd.DataFrame:
    """Measures the target's top-1 and top-10 probability at every position of given images, codes (images, tokens): one
    row per guidance scale x image x code: cfg_scale, image, position among the codes, top1, top10.

    The context of a position is the image's own codes (teacher forcing), temperature 1, no filter.
    """
    frames = []
    for cfg_scale in dict.fromkeys(cfg_scales):
        batches = walk_logits(target_model, text_encoder, codes, texts, cfg_scale=cfg_scale, batch_size=batch_size)
        for rows, tokens, logits in batches:
            top1, top10 = top_masses(select_codes(target_model, tokens, logits)[1])
            frames.append(_to_frame(cfg_scale, rows.start, top1.cpu(), top10.cpu()))
    return pd.concat(frames, ignore_index=True)


def _to_frame(cfg_scale: float, first_image: int, top1: Tensor, top10: Tensor) -> pd.DataFrame:
    num_images, num_tokens = top1.shape
    image, position = torch.meshgrid(torch.arange(num_images) + first_image, torch.arange(num_tokens), indexing="ij")
    columns = {"image": image, "position": position, "top1": top1, "top10": top10}
    return pd.DataFrame(
        {"cfg_scale": cfg_scale, **{name: values.flatten().numpy() for name, values in columns.items()}}
    )
