"""Sampling settings, and the temperature, top-k and top-p filters of logits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import cast

import numpy as np
import torch

from lantern.whole_numbers import as_whole

FILTER_ORDERS = ("top_k_first", "top_p_first")
TEMPERATURES = (1e-38, 1e38)  # above 0; normal float32 numbers are from 1.2e-38 to 3.4e38
MAX_CFG_SCALE = 1e30  # times a difference of logits up to 3e8, this is a float32 number


@dataclass(frozen=True)
class SamplingConfig:
    """Settings that turn logits into a distribution.

    Args:
        temperature: divisor of the logits, 0 or in [1e-38, 1e38]. 0 means greedy decoding, which takes the most
            probable token.
        top_k: number of largest logits that are kept, including ties with the k-th. 0 keeps all.
        top_p: the most probable tokens are kept until their total probability exceeds this number. 1 keeps all.
        filter_order: "top_k_first" (LlamaGen) or "top_p_first" (LANTERN's public code). It matters if both filters are
            on.
        cfg_scale: guidance scale s in u + s (c - u), with the conditional logits c and the unconditional logits u. 1
            switches guidance off, 1e30 is the largest.

    Raises:
        ValueError: a value is out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    filter_order: str = "top_k_first"
    cfg_scale: float = 1.0

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "cfg_scale"):
            value = getattr(self, name)
            # Comparisons with nan are False: `not abs(nan) < inf` refuses it, where `abs(nan) >= inf` would not.
            if isinstance(value, bool) or not isinstance(value, Real) or not abs(cast("float", value)) < math.inf:
                raise ValueError(f"{name} must be a finite number, got {value!r}")
        if self.temperature < 0:
            raise ValueError(f"temperature must be >= 0, got {self.temperature}; 0 is greedy decoding")
        low, high = TEMPERATURES
        if self.temperature != 0 and not low <= self.temperature <= high:
            raise ValueError(
                f"temperature must be 0 or in [{low:g}, {high:g}], got {self.temperature}; 0 is greedy decoding"
            )
        top_k = as_whole(self.top_k)
        if top_k is None or top_k < 0:
            raise ValueError(f"top_k must be an integer >= 0, got {self.top_k}; 0 keeps every token")
        object.__setattr__(self, "top_k", top_k)  # as int, also from numpy; the class is frozen
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}; 1 keeps every token")
        if self.filter_order not in FILTER_ORDERS:
            raise ValueError(f"filter_order must be one of {', '.join(FILTER_ORDERS)}, got {self.filter_order!r}")
        if self.cfg_scale < 1:
            raise ValueError(f"cfg_scale must be >= 1, got {self.cfg_scale}; 1 switches guidance off")
        if self.cfg_scale > MAX_CFG_SCALE:
            raise ValueError(f"cfg_scale must be in [1, {MAX_CFG_SCALE:g}], got {self.cfg_scale}; choose a smaller one")

    @property
    def is_greedy(self) -> bool:
        """True at temperature 0, at which no noise is read and nothing is filtered."""
        return self.temperature == 0

    @property
    def is_guided(self) -> bool:
        """True if cfg_scale > 1, so that the target also runs on null prompts."""
        return self.cfg_scale > 1


def filter_logits(logits: torch.Tensor, sampling: SamplingConfig) -> torch.Tensor:
    """Return unnormalised log-probabilities after temperature, top-k and top-p, -inf for tokens that were filtered out.

    Temperature 0 counts as 1. `logits` are float32 (..., vocab).

    Source: LlamaGen autoregressive/models/generate.py for the order "top_k_first", jadohu/LANTERN ea_model_llamagen.py
    for "top_p_first".
    """
    # The largest logit becomes 0, so that no quotient is +inf. Only where one may be, since the subtraction rounds.
    if 0 < sampling.temperature < 1e-30 or sampling.cfg_scale > 1e8:
        logits = logits - logits.amax(-1, keepdim=True)
    if sampling.temperature not in (0, 1):
        logits = logits / sampling.temperature
    if sampling.filter_order == "top_k_first":
        return _keep_top_p(_keep_top_k(logits, sampling.top_k), sampling.top_p)
    return _keep_top_k(_keep_top_p(logits, sampling.top_p), sampling.top_k)


def _keep_top_k(logits: torch.Tensor, k: int) -> torch.Tensor:
    if k == 0 or k >= logits.shape[-1]:
        return logits
    return logits.masked_fill(logits < _kth_largest(logits, k), float("-inf"))


def _kth_largest(logits: torch.Tensor, k: int) -> torch.Tensor:
    # (..., vocab) -> (..., 1)
    if logits.device.type != "cpu" or logits.dtype != torch.float32:
        return logits.topk(k, dim=-1, sorted=False).values.amin(-1, keepdim=True)
    # On a CPU, numpy finds it in half the time of `topk`.
    index = logits.shape[-1] - k
    ordered = np.partition(logits.detach().numpy(), index, axis=-1)
    return torch.from_numpy(ordered[..., index : index + 1])


def _keep_top_p(logits: torch.Tensor, top_p: float) -> torch.Tensor:
    if top_p >= 1:
        return logits
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    probs = ordered.softmax(dim=-1)
    is_dropped = probs.cumsum(dim=-1) - probs > top_p  # more probable tokens already exceed top_p
    return logits.masked_fill(torch.zeros_like(is_dropped).scatter(-1, order, is_dropped), float("-inf"))
