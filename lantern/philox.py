"""Random bits of numpy's Philox generator, and noise made from them, by PyTorch operations on any device.

PyTorch cannot multiply unsigned 64-bit integers. The module therefore uses int64, whose sums and products have the same
lowest 64 bits. Values are numbered from 0 in the order of numpy's generator. Functions return those from `begin` to
before `end`. A *key* is two integers below 2^64.

Source: Philox 4x64 with 10 rounds (Salmon et al. 2011), as in numpy.random.Philox.
"""

from __future__ import annotations

import torch

from lantern import fused

ROUNDS = 10
MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)  # of the paper, M0 and M1 below
# Fractional parts of the golden ratio and of the square root of 3, times 2^64.
KEY_STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
LOW = 2**32 - 1  # mask of the lower half of 64 bits
VALUES_AT_ONCE = 2**22  # to bound memory: as float64 they take 32 MiB


def raw_bits(key: tuple[int, int], begin: int, end: int, device: torch.device | str) -> torch.Tensor:
    """Return the raw values of a Philox generator, int64 with the bits of numpy's uint64, (end - begin,)."""
    first = begin // 4
    # Each count of the counter gives four values. The generator steps its counter before it uses it, hence + 1 at
    # both ends.
    a = torch.arange(first + 1, -(-end // 4) + 1, device=device)
    # The counter has 256 bits, (a, b, c, d) from the lowest word on. The upper three stay 0.
    b, c, d = torch.zeros_like(a), torch.zeros_like(a), torch.zeros_like(a)
    for round_ in range(ROUNDS):
        # In round r the key is key + r * step modulo 2^64.
        key_0, key_1 = (_signed(part + round_ * step) for part, step in zip(key, KEY_STEPS, strict=True))
        # Each product has 128 bits and is computed in halves.
        high_a, high_c = _high_product(MULTIPLIERS[0], a), _high_product(MULTIPLIERS[1], c)
        low_a, low_c = a * _signed(MULTIPLIERS[0]), c * _signed(MULTIPLIERS[1])
        # (a, b, c, d) <- (high(M1 c) ^ b ^ key_0, low(M1 c), high(M0 a) ^ d ^ key_1, low(M0 a))
        a = high_c.bitwise_xor_(b).bitwise_xor_(key_0)
        c = high_a.bitwise_xor_(d).bitwise_xor_(key_1)
        b, d = low_c, low_a
    return torch.stack([a, b, c, d], dim=1).flatten()[begin - 4 * first : end - 4 * first]


def uniform_values(key: tuple[int, int], begin: int, end: int, device: torch.device | str) -> torch.Tensor:
    """Return uniform values in (0, 1), float64 (end - begin,)."""
    # The middle of one of 2^53 intervals, as in `lantern.noise`.
    values = _shift_right(raw_bits(key, begin, end, device), 11).double().add_(0.5).mul_(2.0**-53)
    return values.clamp_(max=1 - 2.0**-53)  # the largest value would round to 1 and give infinite Gumbel noise


def noise_values(
    key: tuple[int, int], begin: int, end: int, device: torch.device | str, *, is_gumbel: bool
) -> torch.Tensor:
    """Return standard Gumbel noise or uniform noise in (0, 1], float32 (end - begin,)."""
    # One Triton kernel in place of the operations below.
    if fused.is_usable(torch.device(device)):
        bits = torch.tensor([_signed(part) for part in key], device=device)
        return fused.make_noise(bits, begin, end - begin, is_gumbel)
    noise = torch.empty(end - begin, device=device)
    for first in range(begin, end, VALUES_AT_ONCE):
        last = min(first + VALUES_AT_ONCE, end)
        values = uniform_values(key, first, last, device)
        if is_gumbel:
            values = values.log_().neg_().log_().neg_()
        noise[first - begin : last - begin] = values
    return noise


def _signed(value: int) -> int:
    # The int64 with the bits of an unsigned integer, taken modulo 2^64.
    value %= 2**64
    return value - 2**64 if value >= 2**63 else value


def _shift_right(x: torch.Tensor, num_bits: int) -> torch.Tensor:
    """Shift the bits of int64 values to the right, and fill with zeros instead of copies of the sign."""
    return (x >> num_bits).bitwise_and_(2 ** (64 - num_bits) - 1)


def _high_product(factor: int, x: torch.Tensor) -> torch.Tensor:
    # The upper 64 of the 128 bits of factor * x, with x read as unsigned.
    # (2^32 high + low) (2^32 x_high + x_low): products of 32-bit halves, none of which exceeds 64 bits
    high, low = factor >> 32, factor & LOW
    x_low, x_high = x & LOW, _shift_right(x, 32)
    # middle and cross hold the terms of 2^32, and their upper halves carry into the result.
    middle = torch.add(_shift_right(x_low * low, 32), x_low, alpha=high)
    cross = torch.add(middle & LOW, x_high, alpha=low)
    return torch.add(_shift_right(middle, 32), x_high, alpha=high).add_(_shift_right(cross, 32))
