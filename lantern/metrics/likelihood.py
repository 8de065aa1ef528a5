"""Likelihood of generated tokens under the target: how far has relaxed decoding strayed from the target's own law?"""

from __future__ import annotations

import torch


def negative_log_likelihood(codes: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Computes each image's mean negative log-likelihood per token under the target.

    The law is the target's after guidance, at temperature 1 and unfiltered, whatever the sampling settings were: a fixed ruler. The
    entropy of the target's own samples is its floor for sampled images; greedy images lie far below it.

    Args:
        codes: (images, tokens) integer, the generated image tokens.
        logits: (images, tokens, vocab) float, guided target logits for each position given the codes before it (teacher forcing).

    Returns:
        (images,) float32, nats per token.

    Raises:
        ValueError: shapes do not fit, or a logit is nan.
    """
    if logits.shape[:-1] != codes.shape:
        raise ValueError(f"logits {tuple(logits.shape)} must be codes {tuple(codes.shape)} with a vocabulary axis added")
    if torch.isnan(logits).any():
        raise ValueError("the target's logits hold nan; its checkpoint or the guidance scale is broken")
    log_probs = logits.double().log_softmax(dim=-1)  # (images, tokens, vocab)
    chosen = log_probs.gather(-1, codes.long()[..., None]).squeeze(-1)
    return -chosen.mean(dim=-1).float()
