"""What images and codes an image tokenizer takes."""

from __future__ import annotations

from torch import Tensor


def check_images(images: Tensor, size: int) -> None:
    """Checks that images are (n, 3, size, size).

    Raises:
        ValueError: they have another shape.
    """
    if images.ndim != 4 or images.shape[1:] != (3, size, size):
        raise ValueError(f"images must have shape (n, 3, {size}, {size}), got {tuple(images.shape)}; resize them")


def check_codes(codes: Tensor, grid: int, codebook_size: int) -> None:
    """Checks that codes are (n, grid * grid) integers in [0, codebook_size).

    Raises:
        ValueError: wrong number of codes an image, or a code out of range.
    """
    if codes.ndim != 2 or codes.shape[1] != grid**2:
        raise ValueError(f"codes must have shape (n, {grid**2}), got {tuple(codes.shape)}")
    if codes.numel() and not 0 <= int(codes.min()) <= int(codes.max()) < codebook_size:
        raise ValueError(
            f"codes must be in [0, {codebook_size}), got {int(codes.min())} to {int(codes.max())}; "
            "were they made with another tokenizer?"
        )
