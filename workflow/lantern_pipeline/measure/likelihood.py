"""Likelihood of given images under the target, and the ambiguity of the target.

The likelihood of the tokens shows how far relaxed decoding deviates from the target. *Ambiguity* means that the target
is unsure of the next token. It is measured by the probability of the most probable token, and of the ten most probable
tokens together.

A language model is nearly certain of most tokens. A visual model spreads its probability over many similar codes, so
that exact verification accepts few drafts. This is the reason for relaxed decoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd
import torch
from torch import Tensor
from torch.distributions import Categorical
from tqdm import tqdm

from lantern.likelihood import teacher_forced_logits
from lantern.models.target import Target
from lantern.text_encoders.base import TextEncoder

# Number of logits in a batch: half a GiB in float32. Functions that use logits hold three to six such arrays at once.
LOGITS_AT_ONCE = 2**27
IMAGES_ON_CPU = 16  # largest batch on a CPU: the activations of more images do not fit into the caches


def select_codes(target_model: Target, tokens: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Remove line-end tokens from tokens and logits, so that only codes of the image remain.

    Some targets emit a line-end token, with probability 1, after each line of codes. For other targets the tensors are
    returned unchanged.

    Args:
        target_model: the target.
        tokens: (images, tokens).
        logits: logits of every position, (images, tokens, vocab).

    Returns:
        (tokens, logits) of the positions with codes, (images, codes) and (images, codes, num_codes). Logits of tokens
        that are not codes are removed, too.
    """
    config = target_model.config
    if config.line_end is None:
        return tokens, logits
    is_code = ~config.ends_line(torch.arange(tokens.shape[1], device=tokens.device))
    return tokens[:, is_code], logits[:, is_code, : config.num_codes]


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
    """Compute the target's logits after guidance for many images, batch by batch, by teacher forcing.

    A batch has at most `batch_size` images and at most LOGITS_AT_ONCE logits, but at least one image. On a CPU it also
    has at most IMAGES_ON_CPU images.

    Args:
        target_model: the target.
        text_encoder: text encoder of the target.
        codes: tokens of the images, (images, tokens).
        texts: one prompt per image.
        cfg_scale: guidance scale; 1 means no guidance.
        batch_size: largest number of images per batch.

    Yields:
        (rows, codes, logits) for each batch. rows is the slice of the images in the batch. codes are their tokens,
        int64 (batch, tokens). logits are float32 (batch, tokens, vocab). Both tensors are on the target's device.
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
    """Compute the negative log-likelihood of every token.

    Args:
        codes: (images, tokens).
        logits: logits of each position given the codes before it, (images, tokens, vocab).

    Returns:
        float32 (images, tokens), in nats. The mean over the tokens of an image is the NLL of the image.

    Raises:
        ValueError: a logit is nan or infinite.
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
    """Compute the negative log-likelihood of the codes of images under the target, given their prompts.

    The target's distribution is taken after guidance, at temperature 1 and without top-k and top-p, regardless of the
    settings with which the images were sampled. If images are sampled from this same distribution, their mean is close
    to its entropy. The mean of greedy images is much lower. The mean of relaxed decoding differs from the entropy, too.

    Args:
        target_model: the target.
        text_encoder: text encoder of the target.
        codes: tokens of the images, (images, tokens).
        texts: one prompt per image.
        cfg_scale: guidance scale; 1 means no guidance.
        batch_size: largest number of images per batch.

    Returns:
        float32 (images, codes), in nats, on the CPU. Line-end tokens are certain and left out.
    """
    scores = []
    batches = walk_logits(target_model, text_encoder, codes, texts, cfg_scale=cfg_scale, batch_size=batch_size)
    for _, chosen, logits in batches:
        scores.append(token_negative_log_likelihood(*select_codes(target_model, chosen, logits)).cpu())
    return torch.cat(scores)


def top_masses(logits: Tensor, num_best: int = 10) -> tuple[Tensor, Tensor]:
    """Return the probability of the most probable token, and of the `num_best` most probable tokens together.

    Args:
        logits: (..., vocab).
        num_best: number of tokens.

    Returns:
        Two float32 tensors, (...) each.
    """
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
    """Measure the target's top-1 and top-10 probability and its entropy at every position of given images.

    The context of a position is the image's own codes (teacher forcing). The distribution is taken at temperature 1,
    without top-k and top-p.

    Args:
        target_model: the target.
        text_encoder: text encoder of the target.
        codes: tokens of the images, (images, tokens).
        texts: one prompt per image.
        cfg_scales: guidance scales; 1 means no guidance.
        batch_size: largest number of images per batch.

    Returns:
        One row per guidance scale, image and code, with columns cfg_scale, image (its index), position among the codes,
        top1, top10 and entropy (in nats).
    """
    frames = []
    for cfg_scale in dict.fromkeys(cfg_scales):
        batches = walk_logits(target_model, text_encoder, codes, texts, cfg_scale=cfg_scale, batch_size=batch_size)
        for rows, tokens, logits in batches:
            of_codes = select_codes(target_model, tokens, logits)[1].float()
            (top1, top10), entropy = top_masses(of_codes), Categorical(logits=of_codes).entropy()
            image, position = torch.meshgrid(*(torch.arange(size) for size in top1.shape), indexing="ij")
            places = {"image": image + rows.start, "position": position}
            columns = {**places, "top1": top1, "top10": top10, "entropy": entropy}
            flat = {name: values.flatten().cpu().numpy() for name, values in columns.items()}
            frames.append(pd.DataFrame({"cfg_scale": cfg_scale, **flat}))
    return pd.concat(frames, ignore_index=True)
