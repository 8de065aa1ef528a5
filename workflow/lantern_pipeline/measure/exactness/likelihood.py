"""Likelihood of given images under the target, and the ambiguity of the target.

Logits come from teacher forcing: the context of a position is the image's own tokens. `codes` are (images, tokens),
`texts` has one prompt per image, and a guidance scale of 1 means no guidance. Likelihoods and entropies are in nats.

The likelihood of the tokens shows how far relaxed decoding deviates from the target. *Ambiguity* means that the target
is unsure of the next token. A language model is nearly certain of most tokens. A visual model spreads its probability
over many similar codes, so that exact verification accepts few drafts. This is the reason for relaxed decoding.
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
from lantern.prompts import TextEncoder

# Number of logits in a batch: half a GiB in float32. Functions that use logits hold three to six such arrays at once.
LOGITS_AT_ONCE = 2**27
IMAGES_ON_CPU = 16  # largest batch on a CPU: the activations of more images do not fit into the caches


def select_codes(target_model: Target, tokens: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Keep the codes of tokens (images, tokens) and logits (images, tokens, vocab): line-end tokens are certain."""
    config = target_model.config
    if config.line_end is None:
        return tokens, logits
    is_code = ~config.ends_line(torch.arange(tokens.shape[1], device=tokens.device))
    # Logits of tokens that are not codes stand behind those of the codes.
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
    """Yield (rows, codes, logits) of each batch, with the target's logits after guidance, on the target's device.

    `rows` is the slice of the batch, and logits are float32 (batch, tokens, vocab).
    """
    device = target_model.device
    most = min(batch_size, IMAGES_ON_CPU) if device.type == "cpu" else batch_size
    # At least one image, even if it has more logits than LOGITS_AT_ONCE.
    size = max(1, min(most, LOGITS_AT_ONCE // (codes.shape[1] * target_model.config.vocab_size)))
    for first in tqdm(range(0, len(texts), size), desc="teacher forcing", disable=None, leave=False):
        rows = slice(first, first + size)
        features, mask = (part.to(device) for part in text_encoder.encode(texts[rows]))
        chosen = codes[rows].long().to(device)
        yield rows, chosen, teacher_forced_logits(target_model, features, mask, chosen, cfg_scale)


def token_negative_log_likelihood(codes: Tensor, logits: Tensor) -> Tensor:
    """Return float32 (images, tokens). Logits that are not finite raise a ValueError."""
    if not torch.isfinite(logits).all():
        raise ValueError(
            "the target's logits hold nan or infinity; check its weights, set generation.dtype to float32, or lower "
            "sampling.cfg_scale"
        )
    logits = logits.float()
    # -log softmax(z)_c = logsumexp(z) - z_c, without a log-softmax of the size of the logits.
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
    """Return the negative log-likelihood of the codes of images, float32 (images, codes), on the CPU.

    The distribution is taken at temperature 1 and without top-k and top-p, regardless of the settings with which the
    images were sampled. If images are sampled from this same distribution, their mean is close to its entropy. The mean
    of greedy images is much lower.
    """
    scores = []
    batches = walk_logits(target_model, text_encoder, codes, texts, cfg_scale=cfg_scale, batch_size=batch_size)
    for _, chosen, logits in batches:
        scores.append(token_negative_log_likelihood(*select_codes(target_model, chosen, logits)).cpu())
    return torch.cat(scores)


def top_masses(logits: Tensor, num_best: int = 10) -> tuple[Tensor, Tensor]:
    """Return the probability of the most probable token, and of the `num_best` most probable tokens together."""
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
    """Measure top-1 and top-10 probability and entropy of the target at every code, at temperature 1 without filters.

    The table has one row per guidance scale, image and code, with columns cfg_scale, image (its index), position among
    the codes, top1, top10 and entropy.
    """
    frames = []
    # A scale that the config names twice is measured once. Unlike a set, a dict keeps the order.
    for cfg_scale in dict.fromkeys(cfg_scales):
        batches = walk_logits(target_model, text_encoder, codes, texts, cfg_scale=cfg_scale, batch_size=batch_size)
        for rows, tokens, logits in batches:
            of_codes = select_codes(target_model, tokens, logits)[1].float()
            (top1, top10), entropy = top_masses(of_codes), Categorical(logits=of_codes).entropy()
            # Index of the image in its batch and index of the code, (batch, codes) each.
            image, position = torch.meshgrid(*(torch.arange(size) for size in top1.shape), indexing="ij")
            places = {"image": image + rows.start, "position": position}
            columns = {**places, "top1": top1, "top10": top10, "entropy": entropy}
            flat = {name: values.flatten().cpu().numpy() for name, values in columns.items()}
            frames.append(pd.DataFrame({"cfg_scale": cfg_scale, **flat}))
    return pd.concat(frames, ignore_index=True)
