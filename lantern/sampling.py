"""From logits to tokens: guidance, temperature, top-k and top-p filters, and the noise field of an image.

All randomness of an image comes from its noise field, a pure function of (run seed, prompt id, stream, position, code
or slot). It is computed on the CPU in float64 from a counter-based generator and rounded to float32, hence the same
whatever the device, the batch or the method that reads it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

FILTER_ORDERS = ("top_k_first", "top_p_first")
NOISE_BLOCK = 2**18  # values of noise made at once
MAX_SIBLINGS = 64  # accept decisions per position that have noise of their own; the same for every tree


@dataclass(frozen=True)
class SamplingConfig:
    """How logits become a distribution.

    Args:
        temperature: 0 takes the most probable token; otherwise logits are divided by it.
        top_k: keep the k largest logits, ties with the k-th kept; 0 keeps all.
        top_p: keep the most probable tokens up to and including the one that crosses this mass; 1 keeps all.
        filter_order: "top_k_first" (LlamaGen) or "top_p_first" (the LANTERN authors' code); they differ when both
            filter.
        cfg_scale: guidance scale s in u + s (c - u); 1 runs without the null caption.

    Raises:
        ValueError: a value out of its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    filter_order: str = "top_k_first"
    cfg_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature must be >= 0, got {self.temperature}; 0 is greedy decoding")
        if self.top_k < 0:
            raise ValueError(f"top_k must be >= 0, got {self.top_k}; 0 keeps every token")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}; 1 keeps every token")
        if self.filter_order not in FILTER_ORDERS:
            raise ValueError(f"filter_order must be one of {', '.join(FILTER_ORDERS)}, got {self.filter_order!r}")
        if self.cfg_scale < 1:
            raise ValueError(f"cfg_scale must be >= 1, got {self.cfg_scale}; 1 switches guidance off")

    @property
    def is_greedy(self) -> bool:
        """Whether the most probable token is taken."""
        return self.temperature == 0

    @property
    def is_guided(self) -> bool:
        """Whether the null caption runs along."""
        return self.cfg_scale > 1


def guide(doubled: torch.Tensor, cfg_scale: float) -> torch.Tensor:
    """Classifier-free guidance u + s (c - u) in float32.

    Args:
        doubled: (2 batch, ...), captioned rows first, null rows second; logits, or hidden states in front of a linear
            head (guidance and a bias-free head commute, and the head then runs on half the rows).
        cfg_scale: s.

    Returns:
        (batch, ...), float32.
    """
    captioned, null = doubled.float().chunk(2)
    return torch.lerp(null, captioned, cfg_scale)


def filter_logits(logits: torch.Tensor, sampling: SamplingConfig) -> torch.Tensor:
    """Applies temperature, top-k and top-p.

    Args:
        logits: float32, (..., vocab).
        sampling: which filters; a temperature of 0 is taken as 1.

    Returns:
        Unnormalised log-probabilities, (..., vocab), -inf where filtered out.

    Source: order "top_k_first" LlamaGen autoregressive/models/generate.py; "top_p_first" jadohu/LANTERN
    ea_model_llamagen.py.
    """
    if sampling.temperature not in (0, 1):
        logits = logits / sampling.temperature
    if sampling.filter_order == "top_k_first":
        return _keep_top_p(_keep_top_k(logits, sampling.top_k), sampling.top_p)
    return _keep_top_k(_keep_top_p(logits, sampling.top_p), sampling.top_k)


def _keep_top_k(logits: torch.Tensor, k: int) -> torch.Tensor:
    if k == 0 or k >= logits.shape[-1]:
        return logits
    threshold = logits.topk(k, dim=-1).values[..., -1:]
    return logits.masked_fill(logits < threshold, float("-inf"))


def _keep_top_p(logits: torch.Tensor, top_p: float) -> torch.Tensor:
    if top_p >= 1:
        return logits
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    probs = ordered.softmax(dim=-1)
    is_dropped = probs.cumsum(dim=-1) - probs > top_p  # mass in front of a token already exceeds top_p
    return logits.masked_fill(torch.zeros_like(is_dropped).scatter(-1, order, is_dropped), float("-inf"))


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
