"""Exactness as an equality: are the tokens those of autoregressive decoding under the same noise?"""

from __future__ import annotations

from dataclasses import dataclass

import torch

NEAR_TIE_MARGIN = 1e-4  # nats, a gap below which two tokens count as tied by floating point


@dataclass(frozen=True)
class Equality:
    """Comparison of each image with the autoregressive one of the same prompt and noise.

    Attributes:
        is_equal: (images,) bool, all codes are equal.
        is_near_tie: (images,) bool, codes differ, and the first difference sits where the autoregressive decoder's two
            best candidates were closer than the stated margin: a difference of rounding, not of the method.
        first_difference: (images,) int64, position of the first difference; the number of tokens where there is none.
        margin_at_difference: (images,) float, the autoregressive decoder's margin there, nats; nan where there is none.
    """

    is_equal: torch.Tensor
    is_near_tie: torch.Tensor
    first_difference: torch.Tensor
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
    codes: torch.Tensor,
    autoregressive_codes: torch.Tensor,
    margins: torch.Tensor,
    near_tie_margin: float = NEAR_TIE_MARGIN,
) -> Equality:
    """Compares codes (images, tokens) image by image with the autoregressive decoder's of the same prompts and noise.

    Batched and one-token forwards round differently in the last bits. Where the autoregressive decoder's two best
    perturbed log-probabilities are almost equal, either may win; everything after such a position then differs
    legitimately. Only the *first* difference can be excused in this way: where `margins` (images, tokens), the gap of
    these two in nats, is below `near_tie_margin`.
    """
    if codes.shape != autoregressive_codes.shape or margins.shape != codes.shape:
        raise ValueError(
            f"codes {tuple(codes.shape)}, autoregressive codes {tuple(autoregressive_codes.shape)} and margins "
            f"{tuple(margins.shape)} must have one shape (images, tokens)"
        )
    if near_tie_margin < 0:
        raise ValueError(f"near_tie_margin must be >= 0 nats, got {near_tie_margin}")
    num_tokens = codes.shape[1]
    differs = codes.long() != autoregressive_codes.long()  # (images, tokens)
    is_equal = ~differs.any(dim=1)
    first = torch.where(is_equal, num_tokens, differs.to(torch.int8).argmax(dim=1))
    margin_there = margins.gather(1, first.clamp(max=num_tokens - 1)[:, None]).squeeze(1)
    margin = margin_there.masked_fill(is_equal, float("nan"))
    return Equality(is_equal, ~is_equal & (margin_there < near_tie_margin), first, margin)
