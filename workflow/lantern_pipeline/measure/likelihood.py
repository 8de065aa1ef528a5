"""What the target says of given images: the likelihood of their tokens (how far has relaxed decoding strayed from it?)
and its ambiguity, the probability of its best one and best ten next tokens.

A text model is nearly sure of most tokens. A visual one spreads its mass over many look-alike codes; that is what
starves drafts of acceptance, and what relaxed decoding answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from lantern.models.target import Target
from lantern.text_encoders.base import TextEncoder

# Values; half a GiB in float32. Whoever reads logits holds three to six arrays of this size at a time.
LOGITS_AT_ONCE = 2**27
IMAGES_ON_CPU = 16  # at once: what a layer makes of more does not fit the caches


def select_codes(target_model: Target, tokens: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Leaves out what ends lines: of images' tokens (images, tokens), and of the logits of every position (images,
    tokens, vocab).
    """
    config = target_model.config
    if config.line_end is None:
        return tokens, logits
    is_code = ~config.ends_line(torch.arange(tokens.shape[1], device=tokens.device))
    return tokens[:, is_code], logits[:, is_code, : config.num_codes]


@torch.inference_mode()
def teacher_forced_logits(
    target_model: Target, features: Tensor, mask: Tensor, codes: Tensor, cfg_scale: float
) -> Tensor:
    """Computes the target's guided logits of every position of given images, (images, tokens, vocab) float32: position
    i given the caption and codes 0 to i - 1; unfiltered, temperature 1, -inf for tokens that cannot stand there.

    `features` are (images, text tokens, caption_dim) float32, left-padded; `mask` (images, text tokens) is True where a
    caption token is; `codes` are (images, tokens); `cfg_scale` is s in u + s (c - u), 1 runs without the null caption.
    """
    codes, first = codes.long(), features.shape[1] - 1
    run = target_model if cfg_scale == 1 else target_model.forward_with_null
    hidden = run(features, mask, codes[:, :-1])[:, first:]
    positions = torch.arange(codes.shape[1], device=codes.device)
    return target_model.guided_logits(hidden.unflatten(0, (-1, len(codes))), cfg_scale, positions)


@torch.inference_mode()
def walk_logits(
    target_model: Target,
    text_encoder: TextEncoder,
    codes: Tensor,
    texts: Sequence[str],
    *,
    cfg_scale: float,
    batch_size: int,
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Computes the target's guided logits of many images, so many at a time that LOGITS_AT_ONCE values hold them, on a
    CPU IMAGES_ON_CPU at most, and one at least: (rows of the batch, their codes (batch, tokens) int64, logits (batch,
    tokens, vocab) float32), both on the model's device.
    """
    device = target_model.device
    most = min(batch_size, IMAGES_ON_CPU) if device.type == "cpu" else batch_size
    size = max(1, min(most, LOGITS_AT_ONCE // (codes.shape[1] * target_model.config.vocab_size)))
    for first in tqdm(range(0, len(texts), size), desc="teacher forcing", disable=None, leave=False):
        rows = slice(first, first + size)
        features, mask = (part.to(device) for part in text_encoder.encode(texts[rows]))
        chosen = codes[rows].long().to(device)
        yield rows, chosen, teacher_forced_logits(target_model, features, mask, chosen, cfg_scale)


def token_negative_log_likelihood(codes: Tensor, logits: Tensor) -> Tensor:
    """Computes the negative log-likelihood of every token, (images, tokens) float32 in nats, from codes (images,
    tokens) and logits (images, tokens, vocab) of each position given the codes before it; an image's is its mean.
    """
    if not torch.isfinite(logits).all():
        raise ValueError("the target's logits hold nan or infinity; its checkpoint or the guidance scale is broken")
    logits = logits.float()
    chosen = logits.gather(-1, codes.long()[..., None]).squeeze(-1)  # (images, tokens)
    return logits.logsumexp(dim=-1) - chosen


def score_tokens(
    target_model: Target,
    text_encoder: TextEncoder,
    codes: Tensor,
    texts: Sequence[str],
    *,
    cfg_scale: float,
    batch_size: int = 64,
) -> Tensor:
    """Computes the negative log-likelihood of images' tokens (images, tokens) under the target, given their prompts:
    (images, codes) float32 in nats, on the CPU; tokens that end lines are certain, and not among them.

    The distribution is the target's after guidance, at temperature 1 and unfiltered, whatever the sampling settings
    were. The target's own samples score about its entropy; greedy images lie far below it, and relaxed decoding moves
    away from it.
    """
    scores = []
    batches = walk_logits(target_model, text_encoder, codes, texts, cfg_scale=cfg_scale, batch_size=batch_size)
    for _, chosen, logits in batches:
        scores.append(token_negative_log_likelihood(*select_codes(target_model, chosen, logits)).cpu())
    return torch.cat(scores)


def top_masses(logits: Tensor, num_best: int = 10) -> tuple[Tensor, Tensor]:
    """Computes the probabilities of the best token and of the best few, each (...) float32, of logits (..., vocab)."""
    best = logits.float().softmax(dim=-1).topk(min(num_best, logits.shape[-1]), dim=-1).values
    return best[..., 0], best.sum(dim=-1)


@torch.inference_mode()
def measure_ambiguity(
    target_model: Target,
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
            top1, top10 = (mass.cpu() for mass in top_masses(select_codes(target_model, tokens, logits)[1]))
            image, position = torch.meshgrid(*(torch.arange(size) for size in top1.shape), indexing="ij")
            columns = {"image": image + rows.start, "position": position, "top1": top1, "top10": top10}
            flat = {name: values.flatten().numpy() for name, values in columns.items()}
            frames.append(pd.DataFrame({"cfg_scale": cfg_scale, **flat}))
    return pd.concat(frames, ignore_index=True)
