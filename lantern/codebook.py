"""Nearest codes: a table of the k nearest other codes of each code in the codebook.

Some models also have a token that ends each line of codes. Two functions here add it to images and to the table.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from lantern.finite import check_finite

DISTANCES = ("l2", "l2_normalised", "random")


def code_dtype(vocab: int) -> torch.dtype:
    """Return the integer dtype of a table of nearest codes: int16 if all codes fit, else int32."""
    return torch.int16 if vocab <= torch.iinfo(torch.int16).max else torch.int32


def add_line_ends(codes: torch.Tensor, shape: tuple[int, int], line_end: int) -> torch.Tensor:
    """Return the tokens of images: their codes, with a line-end token after every line.

    Args:
        codes: codes of images, (..., height * width).
        shape: height and width of an image in codes.
        line_end: the line-end token.

    Returns:
        The tokens, (..., height * (width + 1)).
    """
    return F.pad(codes.unflatten(-1, shape), (0, 1), value=line_end).flatten(-2)


def with_line_end(table: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Add a row to a table of nearest codes for each token that is not a code, such as the line-end token.

    These rows hold code 0 in all columns. This has no effect: wherever a line-end token is drafted, the target gives
    code 0 the probability 0.

    Args:
        table: nearest codes, (codes, columns).
        vocab_size: number of rows of the result.

    Returns:
        The table, (vocab_size, columns).
    """
    return F.pad(table, (0, 0, 0, vocab_size - len(table)))


def nearest_codes(codebook: torch.Tensor, k: int, neighbours: str = "l2_normalised", seed: int = 0) -> torch.Tensor:
    """Return a table of the k nearest other codes of each code.

    Args:
        codebook: code vectors, (vocab, code_dim).
        k: number of nearest codes in the table, from 1 to vocab - 1.
        neighbours: measure of distance. "l2" compares the vectors as they are stored, like the LANTERN authors' table.
            "l2_normalised" compares the vectors at unit length, which is what a tokenizer with a normalised codebook
            decodes. Cosine distance gives the same order. "random" sorts the other codes at random, as a control.
        seed: random seed of "random".

    Returns:
        Integer table (vocab, k) of the dtype from `code_dtype`, nearest first. Of codes at the same distance, the lower
        one comes first.

    Raises:
        ValueError: k is out of range, or `neighbours` is none of these three names.
        FloatingPointError: the codebook is not finite.

    Source: jadohu/LANTERN entrypoints/generate_codebook.py for "l2" (it keeps all vocab - 1 columns).
    """
    vocab = codebook.shape[0]
    _check_k(k, vocab)
    check_finite(codebook, [f"code {code}" for code in range(vocab)], "channels", "the image tokenizer's codebook")
    if neighbours not in DISTANCES:
        raise ValueError(f"neighbours must be one of {', '.join(DISTANCES)}, got {neighbours!r}")
    rows = codebook.double() if neighbours == "l2" else F.normalize(codebook.double(), dim=-1)
    generator = torch.Generator().manual_seed(seed)
    table = torch.empty(vocab, k, dtype=code_dtype(vocab))
    for begin in range(0, vocab, 1024):  # in chunks, since all distances of 16384 codes take 2 GiB as doubles
        chunk = slice(begin, min(begin + 1024, vocab))
        if neighbours == "random":
            distance = torch.rand(chunk.stop - begin, vocab, generator=generator, dtype=torch.float64)
        else:
            distance = torch.cdist(rows[chunk], rows, compute_mode="donot_use_mm_for_euclid_dist")
        distance[torch.arange(chunk.stop - begin), torch.arange(begin, chunk.stop)] = float("inf")
        table[chunk] = distance.argsort(dim=-1, stable=True)[:, :k]
    return table


def _check_k(k: int, vocab: int) -> None:
    if not 1 <= k < vocab:
        raise ValueError(f"k must be in [1, {vocab - 1}] for a codebook of {vocab} codes, got {k}")
