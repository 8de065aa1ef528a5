"""Methods and images of the public code, as its stored numbers name them."""

from __future__ import annotations

import re

import torch

from lantern.decoding import Decoder
from lantern.decoding_state import Generation
from lantern.methods import MethodSpec
from lantern.tree_shapes import DynamicTreeOptions


def method_of(run: str) -> MethodSpec:
    """A stored run's: `eagle` is exact; of `lantern` k and the authors' one bound are named, up to 1 delta, above it
    lambda; each with a dynamic or static tree.
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
    return decoder.generate(*prompts, [decoder.make_noise(0, f"p{i}") for i in range(len(prompts[0]))])


def assert_accepted(found: torch.Tensor, stored: list[int], num_tokens: int) -> None:
    """Accepted lengths of an image's steps but the last, which may overshoot: there the two codes see different
    positions.
    """
    mine = [n for n in found.tolist() if n >= 0][:-1]
    assert mine == stored[: len(mine)]
    assert 1 + sum(mine) + len(mine) >= num_tokens - 6
