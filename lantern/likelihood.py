"""Logits and log-probabilities of the tokens of given images under the target.

They are computed by teacher forcing: one forward pass over a whole image, without sampling.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lantern.models.target import Target
from lantern.prompts import TextEncoder
from lantern.sampling import SamplingConfig, filter_logits


@torch.inference_mode()
def teacher_forced_logits(
    target: Target, features: torch.Tensor, mask: torch.Tensor, codes: torch.Tensor, cfg_scale: float
) -> torch.Tensor:
    """Compute the target's logits at every position of given images, float32 (images, tokens, vocab).

    Position i is conditioned on the prompt and on codes 0 to i - 1. The logits are those after guidance, before
    temperature and filters. Tokens that are not allowed at a position have logit -inf.

    Args:
        features: caption features, float32 (images, num_text_tokens, caption_dim), or ids, int64 (images,
            num_text_tokens), padded on the left.
        mask: bool (images, num_text_tokens), False for padding.
        codes: (images, tokens).
    """
    codes, first = codes.long(), features.shape[1] - 1
    # Without guidance, the null prompts are not run.
    run = target if cfg_scale == 1 else target.forward_with_null
    # The hidden state at the last prompt position predicts token 0. The last token predicts nothing.
    hidden = run(features, mask, codes[:, :-1])[:, first:]
    positions = torch.arange(codes.shape[1], device=codes.device)
    # Rows of the null prompts come last: (1 or 2 branches, images, tokens, dim).
    return target.guided_logits(hidden.unflatten(0, (-1, len(codes))), cfg_scale, positions)


def token_log_probs(
    target: Target, encoder: TextEncoder, texts: Sequence[str], codes: torch.Tensor, sampling: SamplingConfig
) -> torch.Tensor:
    """Compute the log-probability of every token of images under the target, after guidance, temperature and filters.

    Temperature 0 counts as 1. A token that top-k or top-p filtering removes has -inf.

    Args:
        texts: one prompt per image.
        codes: (images, tokens).

    Returns:
        float32 (images, tokens) on the CPU.
    """
    rows = []
    with torch.inference_mode():
        # One image at a time, since the logits of an image are large.
        for text, tokens in zip(texts, codes.long().to(target.device).split(1), strict=True):
            features, mask = (part.to(target.device) for part in encoder.encode([text]))
            logits = teacher_forced_logits(target, features, mask, tokens, sampling.cfg_scale)
            log_probs = filter_logits(logits, sampling).log_softmax(-1)
            rows.append(log_probs.gather(-1, tokens[..., None])[..., 0].cpu())
    return torch.cat(rows)  # outside inference mode, so that autograd can use the result
