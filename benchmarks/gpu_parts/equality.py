"""Part B of the GPU check: test that images do not depend on the device or on CUDA graphs.

The shipped model generates images in float32 on a CPU, on the GPU, and by a CUDA graph. Every method runs at
temperatures 0 and 1. The model is trained, so drafts are accepted as often as in real use.

With and without a CUDA graph, images must be equal. CPU and GPU round differently, so their images may differ after a
*near-tie*: a token whose two best codes had almost equal scores. The row then states the *margin*, the difference of
these scores.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from functools import cache, partial
from itertools import product
from typing import Any

import torch
from every_method import METHODS, spec_of

import lantern
from gpu_parts.common import Check, load_embedded, models_for
from lantern.decoding import Decoder, make_decoder
from lantern.prompts import TextEncoder
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels, Generation
from lantern_pipeline.measure.exactness.losslessness import compare_with_autoregressive

CAPTIONS = [
    "a small red circle on grass",
    "a large blue square on sand",
    "a green triangle left of a white ring on water",
    "a yellow cross above a purple circle on night",
]
TINY_METHODS = ("autoregressive", "jacobi")
FIELDS = ("codes", "accepted_lengths", "accepted_nodes", "is_substituted")


def measure(check: Check) -> None:
    """Compare the images of all methods on CPU and GPU.

    If there are enough cores, other processes generate the CPU's images at the same time.
    """
    captions = CAPTIONS[: 1 if check.is_tiny else None]
    names = TINY_METHODS if check.is_tiny else METHODS
    temperatures = (1.0,) if check.is_tiny else (0.0, 1.0)
    torch.set_num_threads(1)  # the fastest number for so small a model
    models = load_embedded(
        check.device, is_prepared=check.has_graphs
    )  # if the device is a CPU, it runs the layer code of a GPU
    num_equal = num_images = 0
    workers = _make_workers(check)
    with workers or nullcontext():
        cases = list(product(names, temperatures))
        expected: dict[tuple[str, float], Callable[[], dict[str, Any]]] = {
            case: workers.submit(generate_on_cpu, *case, captions).result
            if workers
            else partial(generate_on_cpu, *case, captions)
            for case in cases
        }
        for name, temperature in cases:
            with check.attempt("images", f"{name}, T {temperature:g}"):
                spec = spec_of(name)
                decoder = make_decoder(models_for(models, spec), spec, _sampling(temperature))
                num_equal += _compare(check, decoder, captions, expected[name, temperature]())
                num_images += len(captions)
    if num_images:
        check.write("all images", "float32", images=num_images, equal_to_cpu=num_equal)


def _make_workers(check: Check) -> ProcessPoolExecutor | None:
    """Start processes that generate images on the CPU. Return None for tiny models or fewer than four cores."""
    num_cores = os.cpu_count() or 1
    if check.is_tiny or num_cores < 4:
        return None
    context = multiprocessing.get_context("spawn")  # CUDA does not work in a fork of a process that has used it
    return ProcessPoolExecutor(
        min(8, num_cores // 2), mp_context=context, initializer=torch.set_num_threads, initargs=(1,)
    )


def _sampling(temperature: float) -> SamplingConfig:
    return SamplingConfig(temperature, 100, 1.0, "top_k_first", 3.0)


@cache
def _reference_models() -> DecodingModels:
    return load_embedded(torch.device("cpu"))


@cache
def _shipped_encoder() -> TextEncoder:
    return lantern.load("embedded").encoder


def generate_on_cpu(name: str, temperature: float, captions: list[str]) -> dict[str, Any]:
    """Generate images of captions by a method on the CPU.

    Returns:
        Codes, number of tokens per step, and margins (differences of the two best scores), as lists, which can be sent
        between processes.
    """
    spec, models = spec_of(name), _reference_models()
    decoder = make_decoder(models_for(models, spec), spec, _sampling(temperature), records_margins=True)
    images = _generate(decoder, captions)
    return {field: getattr(images, field).tolist() for field in ("codes", "step_lengths", "margins")}


def _generate(decoder: Decoder, captions: list[str]) -> Generation:
    batch = _shipped_encoder().encode(captions)
    return decoder.generate(*batch, [decoder.make_noise(0, str(index)) for index in range(len(captions))])


def _compare(check: Check, decoder: Decoder, captions: list[str], expected: dict[str, Any]) -> int:
    """Generate images on the device, write a row about the method, and return how many images equal the CPU's.

    Args:
        check: tools that measure and write the results.
        decoder: decoder on the device.
        captions: captions of the images.
        expected: images of the CPU, from `generate_on_cpu`.
    """
    codes, step_lengths, margins = (torch.tensor(expected[field]) for field in ("codes", "step_lengths", "margins"))
    eager = _generate(decoder.stepped("eager"), captions)
    equality = compare_with_autoregressive(eager.codes.cpu(), codes, margins)
    num_equal = int(equality.is_equal.sum())
    at_difference = equality.margin_at_difference[~equality.is_equal].tolist()
    values: dict[str, Any] = {
        "images": len(captions),
        "equal_to_cpu": num_equal,
        "accepted_as_on_cpu": int((eager.step_lengths.cpu() == step_lengths).all(1).sum()),
        "tokens_per_forward": eager.codes.shape[1] / float(eager.target_forwards.float().mean()),
        "margins_where_they_part": ", ".join(f"{margin:.2g}" for margin in at_difference),
        "stepping": "eager",
    }
    if check.has_graphs:
        graph = _generate(decoder, captions)
        is_equal = all(torch.equal(getattr(graph, field), getattr(eager, field)) for field in FIELDS)
        values["is_right"] = is_equal and decoder.runner.mode == "graph"
        values["stepping"] = decoder.runner.mode
    check.write("images", f"{decoder.spec.method_id}, T {decoder.sampling.temperature:g}", **values)
    return num_equal
