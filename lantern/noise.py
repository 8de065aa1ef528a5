"""The noise field of an image: all its randomness, a pure function of (run seed, prompt id, stream, position, code or
slot).

It is computed on the CPU in float64 from a counter-based generator and rounded to float32, hence the same whatever the
device, the batch or the method that reads it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch

NOISE_BLOCK = 2**18  # values of noise made at once
MAX_SIBLINGS = 64  # accept decisions per position that have noise of their own; the same for every tree


def uniform_field(run_seed: int, prompt_id: str, stream: str, num_positions: int, num_slots: int) -> np.ndarray:
    """Uniform noise of one image in (0, 1).

    Args:
        run_seed: seed of the run.
        prompt_id: the image's prompt id.
        stream: independent fields of one image: "target", "draft", "accept".
        num_positions: rows; row n is the same however many rows are asked for.
        num_slots: columns, for example the vocabulary.

    Returns:
        float64, (num_positions, num_slots).

    Source: Philox (Salmon et al. 2011), a counter-based generator, through numpy.
    """
    values = list(_uniform_blocks(run_seed, prompt_id, stream, num_positions * num_slots))
    return np.concatenate(values).reshape(num_positions, num_slots)


def gumbel_field(run_seed: int, prompt_id: str, stream: str, num_positions: int, num_codes: int) -> torch.Tensor:
    """Standard Gumbel noise of one image, float32, (num_positions, num_codes); arguments as in `uniform_field`."""
    noise, first = np.empty(num_positions * num_codes, np.float32), 0
    for block in _uniform_blocks(run_seed, prompt_id, stream, len(noise)):
        np.log(block, out=block)
        np.negative(block, out=block)
        np.log(block, out=block)
        noise[first : first + len(block)] = np.negative(block, out=block)
        first += len(block)
    return torch.from_numpy(noise.reshape(num_positions, num_codes))


def _uniform_blocks(run_seed: int, prompt_id: str, stream: str, num_values: int) -> Iterator[np.ndarray]:
    """The values of a field in order, float64, NOISE_BLOCK at a time: blocks that stay in the cache are made faster."""
    digest = hashlib.blake2b(f"{run_seed}\n{stream}\n{prompt_id}".encode(), digest_size=16).digest()
    generator = np.random.Philox(key=np.frombuffer(digest, dtype="<u8"))
    for first in range(0, num_values, NOISE_BLOCK):
        raw = generator.random_raw(min(NOISE_BLOCK, num_values - first))
        yield ((raw >> np.uint64(11)) + 0.5) * 2.0**-53


class NoiseField:
    """The noise of a batch of images; a stream is made when first read.

    Args:
        run_seed: seed of the run.
        prompt_ids: one id per image; equal ids give equal noise.
        num_positions: image tokens.
        vocab_size: codes.
        device: where the fields live.
    """

    def __init__(
        self,
        run_seed: int,
        prompt_ids: Sequence[str],
        num_positions: int,
        vocab_size: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.run_seed, self.prompt_ids, self.device = run_seed, list(prompt_ids), device
        self.num_positions, self.vocab_size = num_positions, vocab_size
        self._fields: dict[str, torch.Tensor] = {}
        self._row_offsets = torch.arange(len(self.prompt_ids), device=device)[:, None] * num_positions

    def prepare(self, streams: Sequence[str]) -> None:
        """Makes the fields of some streams now: "target", "draft", "accept"."""
        for stream in streams:
            if stream not in self._fields:
                self._fields[stream] = torch.cat([self._make(stream, prompt_id) for prompt_id in self.prompt_ids]).to(
                    self.device
                )

    def _make(self, stream: str, prompt_id: str) -> torch.Tensor:
        if stream == "accept":
            uniform = uniform_field(self.run_seed, prompt_id, stream, self.num_positions, MAX_SIBLINGS)
            return torch.from_numpy(uniform).float()
        return gumbel_field(self.run_seed, prompt_id, stream, self.num_positions, self.vocab_size)

    def gumbel(self, stream: str, positions: torch.Tensor) -> torch.Tensor:
        """Gumbel noise: positions int64 (batch, nodes), clamped to the last one -> (batch, nodes, vocab)."""
        return self._read(stream, positions)

    def uniform(self, positions: torch.Tensor, num_slots: int) -> torch.Tensor:
        """Uniform noise of the accept decisions: positions (batch, nodes) -> (batch, nodes, num_slots <=
        MAX_SIBLINGS).
        """
        return self._read("accept", positions)[..., :num_slots]

    def _read(self, stream: str, positions: torch.Tensor) -> torch.Tensor:
        self.prepare([stream])
        flat = (positions.clamp(max=self.num_positions - 1) + self._row_offsets).flatten()
        return self._fields[stream].index_select(0, flat).view(*positions.shape, -1)
