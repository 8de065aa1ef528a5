"""Noise of an image, which is the source of all its randomness.

A *stream* is an independent field of random numbers. For example, `TARGET` is the noise with which the target samples.
A value is a pure function of run seed, prompt id, name of the stream, image position, and index. In a `Gumbel` stream
the index is the code. In a `Uniform` stream the index is called a *slot*, and distinguishes the decisions at one
position. Drafters and verifiers declare the streams that they read, as `noise_streams`.

Values are computed in float64 by a counter-based generator, and rounded to float32. They do not depend on the device,
on the batch, or on the method that reads them.

A GPU makes the noise of its images itself, see `lantern.philox`. This takes milliseconds per image, and nothing is
copied from the host. On a CPU, numpy makes the noise in threads during decoding. Both use the same random bits. Devices
may round a logarithm differently. A Gumbel value may therefore differ in its last bit, about once in 10^9 values.

Source: Philox (Salmon et al. 2011), through numpy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lantern.philox import noise_values

NOISE_BLOCK = 2**18  # values that are made at once, 2 MiB: blocks that fit into a CPU's cache are faster
WHOLE_BYTES = 2**25  # largest memory for all positions of an image, per stream, on the host
DEVICE_BYTES = 2**27  # the same on a GPU; 1,024 positions of 16,384 codes take half of it
WINDOW = 64  # smallest number of positions in memory for larger images; more than the deepest tree reads
SLOT_BLOCK = 64  # uniform numbers of a position are made in blocks: up to 64 slots, a number keeps its value


@dataclass(frozen=True)
class Gumbel:
    """A stream of standard Gumbel noise, with a value per code."""

    name: str

    def num_values(self, vocab_size: int) -> int:
        """Return how many values a position has."""
        return vocab_size


@dataclass(frozen=True)
class Uniform:
    """A stream of uniform numbers, with the slots 0 to `slots` - 1 at every position."""

    name: str
    slots: int

    def num_values(self, vocab_size: int) -> int:
        """Return how many values a position has, whole blocks of SLOT_BLOCK."""
        return -(-self.slots // SLOT_BLOCK) * SLOT_BLOCK  # rounded up


Stream = Gumbel | Uniform

TARGET = Gumbel("target")
DRAFT = Gumbel("draft")  # of drafts that are sampled independently of the target


def uniform_field(
    run_seed: int, prompt_id: str, stream: str, num_positions: int, num_slots: int, first: int = 0
) -> np.ndarray:
    """Return uniform noise of an image in (0, 1) from position `first` on, float64 (num_positions, num_slots)."""
    # Values are numbered in raster order: position p begins at p * num_slots.
    values = list(_uniform_blocks(run_seed, prompt_id, stream, first * num_slots, num_positions * num_slots))
    return np.concatenate(values).reshape(num_positions, num_slots)


def gumbel_field(
    run_seed: int, prompt_id: str, stream: str, num_positions: int, num_codes: int, first: int = 0
) -> torch.Tensor:
    """Return standard Gumbel noise from position `first` on, float32 (num_positions, num_codes)."""
    noise, done = np.empty(num_positions * num_codes, np.float32), 0
    # -log(-log u) in place, in float64, since float32 holds few values near u = 1.
    for block in _uniform_blocks(run_seed, prompt_id, stream, first * num_codes, len(noise)):
        np.log(block, out=block)
        np.negative(block, out=block)
        np.log(block, out=block)
        noise[done : done + len(block)] = np.negative(block, out=block)
        done += len(block)
    return torch.from_numpy(noise.reshape(num_positions, num_codes))


def _uniform_blocks(
    run_seed: int, prompt_id: str, stream: str, first_value: int, num_values: int
) -> Iterator[np.ndarray]:
    # Yields float64 arrays of at most NOISE_BLOCK values, in order.
    generator = np.random.Philox(key=np.array(key_of(run_seed, prompt_id, stream), dtype=np.uint64))
    generator.advance(first_value // 4)  # the counter gives four values per step
    # Discard the values of the counter's step that come before `first_value`.
    generator.random_raw(first_value % 4)
    for begin in range(0, num_values, NOISE_BLOCK):
        raw = generator.random_raw(min(NOISE_BLOCK, num_values - begin))
        # The middle of one of 2^53 intervals, never 0: (upper 53 of 64 bits + 0.5) 2^-53. float64 holds 53 bits.
        values = (raw >> np.uint64(11)) + 0.5
        values *= 2.0**-53
        # The largest value would round to 1 and give infinite Gumbel noise.
        yield np.minimum(values, 1 - 2.0**-53, out=values)


def key_of(run_seed: int, prompt_id: str, stream: str) -> tuple[int, int]:
    """Return the generator's key for a stream of an image, a hash, as two integers below 2^64."""
    digest = hashlib.blake2b(f"{run_seed}\n{stream}\n{prompt_id}".encode(), digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def choose_window(num_positions: int, vocab_size: int, device: torch.device | str = "cpu") -> int:
    """Return the number of positions whose noise is in memory per image."""
    # On a GPU as many positions as fit, 4 bytes per value. On a CPU all or WINDOW.
    if is_made_by(device):
        return min(num_positions, max(WINDOW, DEVICE_BYTES // (4 * vocab_size)))
    return num_positions if 4 * num_positions * vocab_size <= WHOLE_BYTES else min(WINDOW, num_positions)


def is_made_by(device: torch.device | str) -> bool:
    """Return whether a device makes the noise for its decoding itself, by `lantern.philox`."""
    return torch.device(device).type == "cuda"


class ImageNoise:
    """The noise of one image.

    On a CPU, the constructor computes the noise of the first `window` positions, without blocking other threads. All
    other noise is computed when it is read.
    """

    def __init__(
        self,
        run_seed: int,
        prompt_id: str,
        streams: Sequence[Stream],
        num_positions: int,
        vocab_size: int,
        window: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.run_seed, self.prompt_id, self.vocab_size, self.device = run_seed, prompt_id, vocab_size, device
        window = choose_window(num_positions, vocab_size, device) if window is None else window
        num_made = 0 if is_made_by(device) else window  # a GPU makes noise so fast that nothing is made ahead
        self._made = {stream: self._make(stream, 0, num_made) for stream in streams if num_made}

    def read(self, stream: Stream, begin: int, end: int) -> torch.Tensor:
        """Return the noise of positions from `begin` to before `end`, float32 (end - begin, values per position)."""
        made = self._made.get(stream)
        # A range that goes past what was made ahead is made anew as a whole.
        return self._make(stream, begin, end) if made is None or end > len(made) else made[begin:end]

    def _make(self, stream: Stream, begin: int, end: int) -> torch.Tensor:
        size, is_gumbel = stream.num_values(self.vocab_size), isinstance(stream, Gumbel)
        if is_made_by(self.device):
            key = key_of(self.run_seed, self.prompt_id, stream.name)
            return noise_values(key, begin * size, end * size, self.device, is_gumbel=is_gumbel).view(-1, size)
        make = gumbel_field if is_gumbel else uniform_field
        values = make(self.run_seed, self.prompt_id, stream.name, end - begin, size, begin)
        return torch.as_tensor(values, dtype=torch.float32)


class NoiseField:
    """The noise of a batch of images, in buffers whose addresses never change.

    For each row, the noise of `window` positions is in memory, that of position p at index p % window. `window` is by
    default the result of `choose_window`. `prompt_ids` is None for a row without an image.
    """

    def __init__(
        self,
        num_rows: int,
        num_positions: int,
        vocab_size: int,
        streams: Sequence[Stream],
        device: torch.device | str = "cpu",
        window: int | None = None,
    ) -> None:
        self.num_positions = num_positions
        self.window = choose_window(num_positions, vocab_size, device) if window is None else window
        self.prompt_ids: list[str | None] = [None] * num_rows
        self._images: list[ImageNoise | None] = [None] * num_rows
        self._ends = [0] * num_rows  # positions before this one are in memory, or no longer needed
        self._values = {
            stream: torch.zeros(num_rows * self.window, stream.num_values(vocab_size), device=device)
            for stream in streams
        }
        self._row_offsets = torch.arange(num_rows, device=device)[:, None] * self.window

    def fill(self, rows: Sequence[int], fields: Sequence[ImageNoise]) -> None:
        """Assign rows of the batch to new images, and load the noise of their first positions."""
        for row, image in zip(rows, fields, strict=True):
            self.prompt_ids[row], self._images[row], self._ends[row] = image.prompt_id, image, 0
            self._extend(row, 0)

    def advance(self, lengths: torch.Tensor, tokens_per_step: int) -> int:
        """Load the noise of the next `window` positions of each row, and return how many steps may follow.

        Args:
            lengths: number of tokens of each row, int64 (num_rows,). It is copied to the host only if the window is
                smaller than an image.
            tokens_per_step: largest number of tokens that a step adds. A step reads no position further ahead.
        """
        if self.window == self.num_positions:
            return self.num_positions  # all noise is in memory, and an image has no more steps than tokens
        for row, length in enumerate(lengths.tolist()):
            self._extend(row, length)
        return self.window // tokens_per_step  # n steps read no more than n * tokens_per_step positions

    def _extend(self, row: int, length: int) -> None:
        image, begin, end = self._images[row], self._ends[row], min(length + self.window, self.num_positions)
        if image is None or begin >= end:
            return
        self._ends[row] = end
        for stream, values in self._values.items():
            # Positions before `length` are no longer read, so that new ones take their places.
            held = torch.arange(begin, end, device=values.device) % self.window + row * self.window
            values.index_copy_(0, held, image.read(stream, begin, end).to(values.device))
        # All noise is in the buffers: free what the image holds.
        if end == self.num_positions:
            self._images[row] = None

    def gumbel(self, stream: Gumbel, positions: torch.Tensor) -> torch.Tensor:
        """Return the noise at positions, int64 (batch, nodes), as (batch, nodes, vocab)."""
        return self._read(stream, positions)

    def uniform(self, stream: Uniform, positions: torch.Tensor, num_slots: int) -> torch.Tensor:
        """Return the numbers of the first `num_slots` slots, in (0, 1], (batch, nodes, num_slots)."""
        return self._read(stream, positions)[..., :num_slots]

    def fresh(self, stream: Uniform, positions: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Return the number in one slot of each position, in (0, 1), (batch, n). `slots` is int64 (batch or 1, n)."""
        noise = self._read(stream, positions).gather(-1, slots.expand_as(positions)[..., None]).squeeze(-1)
        return noise.clamp_(max=1 - 2.0**-24)  # in float32 the largest values round to 1

    def sample(
        self, stream: Uniform, probs: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor
    ) -> torch.Tensor:
        """Sample a code from each distribution by inverse transform sampling, int64 (batch, n).

        This takes one uniform number per sample, where Gumbel noise takes one per code.

        Args:
            probs: (batch, n, vocab), not necessarily normalised. If all are 0, the last code is returned.
            slots: as in `fresh`. Samples at the same position need different slots to be independent.
        """
        # float64 loses no code's share, and makes it improbable that a GPU's order of addition changes a sample.
        cumulative = probs.double().cumsum(-1)
        level = self.fresh(stream, positions, slots)[..., None] * cumulative[..., -1:]
        # right=True: the first code whose cumulative sum exceeds the level, never one of probability 0.
        return torch.searchsorted(cumulative, level, right=True).squeeze(-1).clamp_(max=probs.shape[-1] - 1)

    def _read(self, stream: Stream, positions: torch.Tensor) -> torch.Tensor:
        # Complete images and drafts past the end read the noise of the last position. Their tokens are dropped.
        held = positions.clamp(max=self.num_positions - 1)
        if self.window < self.num_positions:
            held = held % self.window
        flat = (held + self._row_offsets).flatten()  # `index_select` of whole rows; `gather` would index each value
        return self._values[stream].index_select(0, flat).view(*positions.shape, -1)
