"""Methods and images of stored runs of LANTERN's public code, with which Lantern is compared."""

from __future__ import annotations

import re

import torch

from lantern.decoding import Decoder
from lantern.methods import MethodSpec
from lantern.state import Generation
from lantern.tree_shapes import DynamicTreeOptions


def method_of(run: str) -> MethodSpec:
    """Return the method of a stored run, from the name of the run.

    If the name contains `eagle`, the method is exact. If it contains `lantern`, it also contains k and a bound. A bound
    of at most 1 is delta, a larger one is lambda. If the name contains `dynamic`, the tree is dynamic, otherwise
    static.
    """
    parts = {"tree": "naive_extend_57", "drafts": "sampled"}
    if "dynamic" in run:
        parts = {"tree": "dynamic", "tree_shape": DynamicTreeOptions(58, 4, 10), "drafts": "top"}
    if run.startswith("eagle"):
        return MethodSpec.of("exact", **parts)
    k, delta = (float(number) for number in re.findall(r"_[kd]([\d.]+)", run))
    bound = (
        {"acceptance": "multiplicative", "lambda_": delta} if delta > 1 else {"acceptance": "additive", "delta": delta}
    )
    return MethodSpec.of("relaxed", residual="official", neighbours="l2", k=int(k), **bound, **parts)


def generate(decoder: Decoder, prompts: tuple[torch.Tensor, torch.Tensor]) -> Generation:
    """Generate images of prompts p0, p1 and so on, with noise of seed 0."""
    return decoder.generate(*prompts, [decoder.make_noise(0, f"p{i}") for i in range(len(prompts[0]))])


def assert_accepted(found: torch.Tensor, stored: list[int], num_tokens: int) -> None:
    """Assert that accepted lengths equal the stored ones.

    The last step of an image is left out: it may pass the end of the image, where the two programs see different
    positions.

    Args:
        found: accepted length of each step, -1 after the image was complete.
        stored: accepted lengths of the public code.
        num_tokens: number of tokens of an image.
    """
    mine = [n for n in found.tolist() if n >= 0][:-1]
    assert mine == stored[: len(mine)]
    assert 1 + sum(mine) + len(mine) >= num_tokens - 6
