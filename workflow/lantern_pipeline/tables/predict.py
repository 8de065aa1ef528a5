"""Predictions of decoding time on a GPU, from counts of kernels and from published times and step costs.

A *step* is one forward pass of the target at batch 1, with guidance if the model uses it. The *relative step cost* of a
method is the time of its step, divided by the time of an autoregressive step. *Eager* steps launch each kernel from
Python, *graph* steps replay a recorded CUDA graph. With `reading`, the time to read all weights in bfloat16:

    graph step = reading + kernels * KERNEL_US
    eager step = max(kernels * LAUNCH_US, graph step)
    speed-up = tokens per forward pass / relative step cost
    seconds of an image = its tokens * seconds of an autoregressive step / speed-up

In this file, `model` is a key of KERNELS, `gpu` of BANDWIDTH, `method` is a preset, and `stepping` is EAGER or GRAPH.
`_look_up` raises a ValueError for other names. docs/gpu.md explains the numbers.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from lantern.models.config import target_parameters
from lantern.registry import PRESETS, drafts_of
from lantern_models.cards.published import CARDS
from lantern_pipeline.measure.speed.speedups import BASELINE

T = TypeVar("T")

EAGER, GRAPH = "eager", "graph"
BANDWIDTH = {"a100": 2.04e12, "h100": 3.35e12, "h200": 4.8e12}  # bytes per second, SXM versions
# Decoding at batch 1 reads every weight once a step, at this share of the bandwidth (WEIGHTS_SOURCE).
BANDWIDTH_SHARE = 0.68


class Estimate(NamedTuple):
    """An uncertain number, such as a time: its lowest, most likely and highest value."""

    low: float
    likely: float
    high: float


KERNEL_US = Estimate(1.6, 2.1, 2.7)  # microseconds that a kernel with little work takes in a CUDA graph
LAUNCH_US = Estimate(6.8, 8.2, 9.6)  # microseconds that the CPU takes to launch a kernel of an eager step
KERNEL_SOURCE = "estimated; `make gpu-check` measures both"


class LayerTime(NamedTuple):
    """Published time per layer and step of a model in eager code, and the source of the number."""

    milliseconds: float
    source: str


_LLAMAGEN = LayerTime(0.90, "LlamaGen XL, 384 pixels, A100: PAR, arXiv 2412.15119, table 2")
# Name of the model card -> time per layer.
LAYER_TIMES = {
    "llamagen_stage1": _LLAMAGEN,
    "llamagen_stage2": _LLAMAGEN,
    "janus-pro-7b": LayerTime(
        1.33, "no published times; taken from Lumina-mGPT 7B, A100, second-hand by SCD, arXiv 2510.24211"
    ),
    "glm-image": LayerTime(0.96, "GLM-Image 9B, MI300X: vllm-omni issue 4481; its denoising (about 14 s) comes on top"),
}
# Number of kernels in a step of autoregressive decoding in bfloat16, with guidance if the model has it. Counted by
# benchmarks/kernels.py, with layers of transformers for Janus-Pro and GLM-Image.
KERNELS = {"llamagen_stage1": 512, "llamagen_stage2": 512, "janus-pro-7b": 1263, "glm-image": 2383}
# (needs a draft model, how steps run) -> lowest and highest published relative step cost, and the sources.
STEP_COSTS = {
    (False, EAGER): (0.97, 1.53, "SJD, SCD, SJD-PAC, PJD, PAR (arXiv 2510.24211, 2603.18599, 2606.05703, 2412.15119)"),
    (True, EAGER): (1.19, 1.45, "EAGLE, LANTERN, LANTERN++, COOL-SD (arXiv 2511.13587, 2601.09212, 2603.18599)"),
    (False, GRAPH): (1.11, 1.42, "estimated for LlamaGen XL on an H100: Jacobi drafts, 546 to 629 kernels"),
    (True, GRAPH): (
        1.37,
        2.34,
        "estimated for LlamaGen XL on an H100: 654 to 971 kernels; published, EAGLE-1 on Llama-3.1-8B: 1.30 to 1.82 "
        "(vllm issues 16937, 20780)",
    ),
}
WEIGHTS_SOURCE = (
    "68 % of the card's bandwidth, what compiled 7B and graphed 8B models reach (gpt-fast's README, A100; vllm issues "
    "16937, 20780, H100)"
)


@dataclass(frozen=True)
class Prediction:
    """Prediction for one method: tuples are (lowest, highest), the time is of an image."""

    method: str
    stepping: str
    tokens_per_forward: float
    seconds: tuple[float, float]
    speedup: tuple[float, float]  # over autoregressive decoding with the same stepping


def step_ms(model: str, gpu: str, stepping: str) -> Estimate:
    """Estimate the milliseconds of a step of autoregressive decoding."""
    kernels = _look_up(KERNELS, "model", model)
    reading = weights_ms(model, gpu)
    graph = Estimate(*(reading + kernels * us / 1000 for us in KERNEL_US))
    if stepping == GRAPH:
        return graph
    # The CPU launches kernels one after another, as fast for any GPU. A GPU that is slower than this sets the time.
    return Estimate(*(max(kernels * us / 1000, step) for us, step in zip(LAUNCH_US, graph, strict=True)))


def weights_ms(model: str, gpu: str) -> float:
    """Estimate the milliseconds in which a GPU reads all weights that one step uses, in bfloat16."""
    config = CARDS[model].target_config()
    # A step does not read the embeddings of prompts. Of the tokens' embeddings it reads one row, but they count: 3 % or
    # less of the weights.
    num_read = target_parameters(config) - config.num_prompt_ids * config.dim
    # 2 bytes a weight. With guidance, both branches share one reading.
    return 1000 * 2 * num_read / (BANDWIDTH_SHARE * _look_up(BANDWIDTH, "gpu", gpu))


def published_ms(model: str) -> float:
    """Estimate the milliseconds of a forward pass in the eager code of other projects, from their times per layer."""
    return CARDS[model].target_config().num_layers * LAYER_TIMES[model].milliseconds


def predict(model: str, gpu: str, method: str, tokens_per_forward: float) -> list[Prediction]:
    """Predict time per image and speed-up of a method on a GPU, for eager steps and for CUDA graphs, in this order."""
    check_tokens(tokens_per_forward)
    needs_draft_model = uses_draft_model(method)
    found = []
    for stepping in (EAGER, GRAPH):
        speedup = (1.0, 1.0)
        if method != BASELINE:
            speedup = predict_speedup(tokens_per_forward, needs_draft_model, stepping)
        step = step_ms(model, gpu, stepping)
        num_tokens = CARDS[model].target_config().num_image_tokens
        # Ends combine: the fastest step with the highest speed-up, the slowest with the lowest.
        seconds = num_tokens * step.low / 1000 / speedup[1], num_tokens * step.high / 1000 / speedup[0]
        found.append(Prediction(method, stepping, tokens_per_forward, seconds, speedup))
    return found


def check_tokens(tokens_per_forward: float) -> None:
    """Raise a ValueError if a number of tokens per forward pass is below 1 or not finite."""
    if not 1 <= tokens_per_forward < math.inf:  # also refuses nan
        raise ValueError(f"--tokens-per-forward must be a finite number of at least 1, got {tokens_per_forward:g}")


def predict_speedup(tokens_per_forward: float, needs_draft_model: bool, stepping: str) -> tuple[float, float]:
    """Return the speed-ups of a method on a GPU at the highest and at the lowest published step cost."""
    low, high, _ = STEP_COSTS[needs_draft_model, stepping]
    return tokens_per_forward / high, tokens_per_forward / low


def uses_draft_model(method: str) -> bool:
    """Return whether a preset needs a draft model or heads."""
    return drafts_of(_look_up(PRESETS, "method", method).parts.get("drafts")).is_trained


def published_tokens(table: Path | str, method: str) -> float:
    """Return the tokens per forward pass in the first row of a preset in docs/results.csv, on the shapes dataset."""
    _look_up(PRESETS, "method", method)
    with Path(table).open(encoding="utf-8", newline="") as file:
        found: dict[str, str] = {}
        for row in csv.DictReader(file):
            found.setdefault(row["method"], row["tokens_per_forward"])
    if method not in found:
        known = ", ".join(name for name in found if name in PRESETS)
        raise ValueError(f"{method} has no published tokens per forward, {known} have: give --tokens-per-forward")
    return float(found[method])


def table_of(model: str, gpu: str, methods: Iterable[tuple[str, float, str]]) -> str:
    """Write predicted times and speed-ups as a text table, autoregressive decoding first, then all sources.

    `methods` are (preset, tokens per forward pass, words that state where this number is from).
    """
    methods = list(methods)
    rows = [row for name, tokens, _ in [(BASELINE, 1.0, ""), *methods] for row in predict(model, gpu, name, tokens)]
    num_tokens = CARDS[model].target_config().num_image_tokens
    lines = [f"predicted, not measured: {model} on {gpu}, {num_tokens} tokens per image, batch 1; all are estimates"]
    lines.append(
        f"{'method':<16} {'steps':<6} {'tokens/forward':>14} {'predicted seconds':>18} {'predicted speed-up':>19}"
    )
    lines += [
        f"{row.method:<16} {row.stepping:<6} {row.tokens_per_forward:>14.2f} {format_range(row.seconds):>18} "
        f"{format_range(row.speedup):>19}"
        for row in rows
    ]
    lines.append("Speed-ups are over autoregressive decoding with the same kind of steps. Sources:")
    eager, graph = (step_ms(model, gpu, stepping) for stepping in (EAGER, GRAPH))
    kernels = KERNELS[model]
    lines.append(
        f"  eager step {_steps(eager)}: {kernels} kernels, counted, at {LAUNCH_US.low} to {LAUNCH_US.high} us a "
        f"launch, {KERNEL_SOURCE}"
    )
    lines.append(
        f"  graph step {_steps(graph)}: {kernels} kernels at {KERNEL_US.low} to {KERNEL_US.high} us, {KERNEL_SOURCE}; "
        f"and {weights_ms(model, gpu):.2f} ms for the weights at {WEIGHTS_SOURCE}"
    )
    lines.append(
        f"  eager step of other code, for comparison, {published_ms(model):.2f} ms: {LAYER_TIMES[model].source}"
    )
    # Each source is written once, although several methods use it.
    for needs_draft_model in dict.fromkeys(uses_draft_model(name) for name, _, _ in methods if name != BASELINE):
        for stepping in (EAGER, GRAPH):
            low, high, source = STEP_COSTS[needs_draft_model, stepping]
            kind = "with" if needs_draft_model else "without"
            lines.append(f"  relative step cost {kind} a draft model, {stepping}, {low} to {high}: {source}")
    lines += [f"  tokens per forward of {name}, {tokens:.2f}: {source}" for name, tokens, source in methods]
    return "\n".join(lines)


def _steps(step: Estimate) -> str:
    return f"{step.likely:.1f} ms ({step.low:.1f} to {step.high:.1f})"


def format_range(bounds: tuple[float, float]) -> str:
    """Write a range with two decimals: "1.40 to 1.70", or one value if both ends look equal."""
    low, high = (f"{value:.2f}" for value in bounds)
    return low if low == high else f"{low} to {high}"


def _look_up(table: Mapping[str, T], name: str, key: str) -> T:
    if key not in table:
        raise ValueError(f"--{name} must be one of {', '.join(table)}, got {key!r}")
    return table[key]
