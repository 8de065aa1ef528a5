"""Part C of the GPU check: decoding steps at the sizes of LlamaGen XL, eagerly and as a CUDA graph.

Weights are random and bfloat16, guidance is on, and the batch is 1. This part measures time, relative step cost, share
of the roofline, number of kernels and memory. It writes the ten longest kernels to profile.csv. It tests that graph
steps emit the same tokens as eager steps.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from kernels import SAMPLING, KernelCount
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from gpu_parts.common import (
    Check,
    emitted_tokens,
    filled_state,
    free,
    label,
    make_models,
    methods_of,
    models_for,
    weight_bytes,
)
from gpu_parts.predicted import STEP_MS
from lantern.decoding import Decoder, make_decoder
from lantern.generation import synchronise
from lantern.methods import MethodSpec
from lantern.state import DecodingModels, DecodingState
from lantern_pipeline.measure.speed.memory import GIB, peak_gib, reset_peak
from lantern_pipeline.measure.speed.steps import run_step

NUM_STEPS = 30  # after which the tokens of eager steps and of a graph's are compared
NUM_LONGEST = 10
PARTS = ("draft", "target", "score", "verify", "commit")


def measure(check: Check) -> None:
    """Time the steps of all methods, for images of 256 and of 1024 tokens."""
    for num_tokens in (256,) if check.is_tiny else (256, 1024):
        models = make_models(check.xl(num_tokens), check.device, torch.bfloat16)
        methods = methods_of(models)
        baselines: dict[str, float] = {}
        for spec in [methods[0], methods[3], methods[-1]] if check.is_tiny else methods:
            measure_method(check, models, spec, num_tokens, baselines)
        del models
        free(check.device)


def measure_method(
    check: Check, models: DecodingModels, spec: MethodSpec, num_tokens: int, baselines: dict[str, float]
) -> None:
    """Time the steps of a method, and write a row for each way to run steps.

    Args:
        check: tools that measure and write the results.
        models: the models.
        spec: the method.
        num_tokens: tokens of an image, for the names of rows.
        baselines: "eager" or "graph" -> seconds of an autoregressive step. The call for the method `autoregressive`
            adds these seconds.
    """
    tokens: dict[str, torch.Tensor] = {}
    for mode in check.modes:
        with check.attempt("steps", f"{label(spec)}, {num_tokens} tokens, {mode}"):
            free(check.device)
            reset_peak(check.device)
            decoder = make_decoder(models_for(models, spec), spec, SAMPLING, stepping=mode)
            state = filled_state(decoder, 1)
            for _ in range(NUM_STEPS if not check.is_tiny else 2):
                run_step(decoder, state)
            tokens[mode] = emitted_tokens(state)
            values: dict[str, Any] = {"stepping": decoder.runner.mode, "tokens": num_tokens}
            if mode == "graph":
                values["is_right"] = decoder.runner.mode == "graph" and torch.equal(tokens["graph"], tokens["eager"])
                values["preparation_s"] = decoder.runner.preparation_s
            num_calls = 50 if mode == "graph" else 20
            timing = check.time(lambda decoder=decoder, state=state: run_step(decoder, state), num_calls)
            if spec.drafts is None:
                baselines[mode] = timing.median
            if mode in baselines:
                values["relative_step_cost"] = timing.median / baselines[mode]
            values |= {"ms": 1000 * timing.median, "low": 1000 * timing.low, "high": 1000 * timing.high}
            if mode == "graph" and num_tokens == 256:
                values["predicted_ms"] = STEP_MS.get(label(spec))
            values |= _memory(check, models, state, timing.median)
            if mode == "eager":
                with KernelCount() as kernels:
                    run_step(decoder, state)
                values["kernels_counted"] = kernels.total
                values |= _profile(check, decoder, state, f"{label(spec)}, {num_tokens} tokens")
            check.write("steps", f"{label(spec)}, {num_tokens} tokens, {mode}", **values)


def _memory(check: Check, models: DecodingModels, state: DecodingState, seconds: float) -> dict[str, float]:
    """Return the peak memory, and how close a step's time is to the roofline.

    The roofline is the time in which the GPU could read the weights, keys and values of a step at its peak bandwidth.
    Column share_of_roofline is this time divided by the measured time.
    """
    values = {}
    peak = check.peak_bandwidth()
    if peak is not None:
        entries = sum(part.numel() * part.element_size() for layer in state.cache.layers for part in layer.read())
        values["share_of_roofline"] = (weight_bytes(models) + entries) / peak / seconds
    if check.has_graphs:
        values["peak_gib"] = peak_gib(check.device)
        values["reserved_gib"] = torch.cuda.max_memory_reserved(check.device) / GIB
    return values


def _profile(check: Check, decoder: Decoder, state: DecodingState, name: str) -> dict[str, float]:
    """Profile one eager step, and append its longest kernels to profile.csv.

    Returns:
        Number of kernels, their total milliseconds, and microseconds of each part of the step. Empty on a CPU.
    """
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * check.has_graphs
    decoder.timer = record_function
    try:
        with profile(activities=activities) as profiler:
            decoder.step(state)
            synchronise(check.device)
    finally:
        decoder.timer = nullcontext
    averages = profiler.key_averages()
    kernels = list(_kernels(check, averages))
    kernels.sort(key=lambda kernel: kernel[2], reverse=True)
    path = check.output / "profile.csv"
    is_new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        if is_new:
            writer.writerow(["step", "kernel", "calls", "us"])
        writer.writerows([name, *kernel] for kernel in kernels[:NUM_LONGEST])
    found = {f"{event.key}_us": event.device_time_total for event in averages if event.key in PARTS}
    if not check.has_graphs:
        return {}
    return {
        **{key: value for key, value in found.items() if value},
        "kernels": sum(calls for _, calls, _ in kernels),
        "kernels_ms": sum(us for _, _, us in kernels) / 1000,
    }


def _kernels(check: Check, averages: Any) -> Iterator[tuple[str, int, float]]:
    """Yield (name, number of calls, microseconds) of each kernel of a profiled step; on a CPU, of each operation."""
    wanted = DeviceType.CUDA if check.has_graphs else DeviceType.CPU
    for event in averages:
        if event.device_type == wanted and event.key not in PARTS and not getattr(event, "is_user_annotation", False):
            us = event.self_device_time_total if check.has_graphs else event.self_cpu_time_total
            yield event.key, event.count, us
