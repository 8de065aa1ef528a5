"""The codes of an image tokenizer, and nearest codes.

Nearest codes are a table of the k nearest other codes of each code in the codebook, integers (vocab, columns).

Some models also have a token that ends each line of codes. Two functions here add it to images and to the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, Self

import torch
import torch.nn.functional as F

from lantern.io import check_finite_outputs, load_tensors

DISTANCES = ("l2", "l2_normalised", "random")  # what `neighbours` of `nearest_codes` may be


class ImageModel(Protocol):
    """The interface of image tokenizers. They are modules of PyTorch with these methods, and are not derived from it.

    `config` states, among others, `shape`, the height and width of an image in codes, `code_pixels`, the side of a code
    in pixels, and `codebook_size`.
    """

    config: Any

    @property
    def codebook(self) -> torch.Tensor:
        """The code vectors whose distances matter, (codebook_size, code_dim)."""
        ...

    @property
    def decoded_codebook(self) -> torch.Tensor:
        """The code vectors that the decoder gets, (codebook_size, code_dim)."""
        ...

    def encode(self, images: torch.Tensor, /) -> torch.Tensor:
        """Encode images, (images, 3, height, width) in [-1, 1], as codes in raster order, int64 (images, codes)."""
        ...

    def decode(self, codes: torch.Tensor, /) -> torch.Tensor:
        """Decode codes, (images, lines, columns), to images in [-1, 1], (images, 3, height, width)."""
        ...

    def to(self, device: Any, /) -> Self:
        """Move the weights."""
        ...

    def parameters(self) -> Iterator[torch.Tensor]:
        """Iterate over the weights."""
        ...


def code_dtype(vocab: int) -> torch.dtype:
    """Return the dtype in which a table of nearest codes is stored, int16 if all codes fit."""
    return torch.int16 if vocab <= torch.iinfo(torch.int16).max else torch.int32


def add_line_ends(codes: torch.Tensor, shape: tuple[int, int], line_end: int) -> torch.Tensor:
    """Return codes (..., height * width) with a line end after every line, (..., height * (width + 1))."""
    return F.pad(codes.unflatten(-1, shape), (0, 1), value=line_end).flatten(-2)


def with_line_end(table: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Add rows for tokens that are no codes to a table, up to `vocab_size` rows, so that any token can index it.

    Such a token has no nearest codes. Its row therefore repeats the token itself, whose target probability is 0 within
    a line and 1 at the end of it, so that counting it again accepts no other drafts.
    """
    tokens = torch.arange(vocab_size)[len(table) :, None]
    return torch.cat([table, tokens.expand(-1, table.shape[1]).to(table)])


def nearest_codes(codebook: torch.Tensor, k: int, neighbours: str = "l2_normalised", seed: int = 0) -> torch.Tensor:
    """Return a table of the k nearest other codes of each code, nearest first, integers (vocab, k).

    Args:
        codebook: code vectors, (vocab, code_dim).
        neighbours: measure of distance. "l2" compares the vectors as they are stored, like the LANTERN authors' table.
            "l2_normalised" compares the vectors at unit length, which is what a tokenizer with a normalised codebook
            decodes. Cosine distance gives the same order. "random" sorts the other codes at random, as a control.
        seed: random seed of "random".

    Raises:
        ValueError: k is not in [1, vocab - 1], or `neighbours` is none of these names.
        FloatingPointError: the codebook is not finite.

    Source: jadohu/LANTERN entrypoints/generate_codebook.py for "l2" (it keeps all vocab - 1 columns).
    """
    vocab = codebook.shape[0]
    if not 1 <= k < vocab:
        raise ValueError(f"k must be in [1, {vocab - 1}] for a codebook of {vocab} codes, got {k}")
    check_finite_outputs(
        codebook, [f"code {code}" for code in range(vocab)], "channels", "the image tokenizer's codebook"
    )
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
            # |a|^2 + |b|^2 - 2 a b, the default for many vectors, is faster but rounds the distances of near codes.
            distance = torch.cdist(rows[chunk], rows, compute_mode="donot_use_mm_for_euclid_dist")
        # No code is its own neighbour: row i of the chunk is code begin + i.
        distance[torch.arange(chunk.stop - begin), torch.arange(begin, chunk.stop)] = float("inf")
        # Stable: of codes at the same distance, the lower one comes first.
        table[chunk] = distance.argsort(dim=-1, stable=True)[:, :k]
    return table


def load_nearest_codes(path: Path | str, device: torch.device | str = "cpu") -> torch.Tensor:
    """Load the tensor "nearest_codes" of a safetensors file: integers (vocab, columns), nearest first.

    Raises:
        ValueError: the file has no such tensor.
    """
    tensors, _ = load_tensors(path)
    if "nearest_codes" not in tensors:
        raise ValueError(f"{path} holds no tensor nearest_codes, found {sorted(tensors)}; name another file")
    table = tensors["nearest_codes"]
    # A file may hold wider integers.
    return table.to(device, code_dtype(len(table)))


def columns_for(k: int, num_codes: int) -> int:
    """Return the number of columns that a table needs for a method with k nearest codes."""
    # The residual distribution in the LANTERN authors' code needs one code more than k. A code has num_codes - 1
    # others. `nearest_codes` refuses a larger k.
    return max(k, min(k + 1, num_codes - 1))
