"""Code that all parts share: writing rows, timing, loading models, CUDA graphs and the measured methods."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from every_method import with_heads
from kernels import TABLE_COLUMNS, XL
from report import ROOT, rounded

import lantern
from lantern.codebook import code_dtype, nearest_codes
from lantern.decoding import Decoder
from lantern.methods import MethodSpec, make_method
from lantern.models.draft import DraftModel
from lantern.models.stored import load_model
from lantern.models.target import TargetConfig
from lantern.state import DecodingModels, DecodingState
from lantern_methods.shift_heads import ShiftHeads
from lantern_models.checkpoints.target import load_target
from lantern_pipeline.job.machine import describe_machine, name_processor
from lantern_pipeline.measure.speed.clocks import Timing, time_blocks
from lantern_pipeline.measure.speed.random_models import RandomPrompts, prepare, random_models
from lantern_pipeline.measure.speed.steps import fill
from lantern_pipeline.tables.predict import BANDWIDTH

SMALL = TargetConfig(
    dim=64, num_layers=2, num_heads=2, ffn_multiple=16, vocab_size=256, grid=4, num_text_tokens=8, caption_dim=16
)
FOLDER = ROOT / "models" / "embedded"
NUM_NEAREST = 101


@dataclass(frozen=True)
class Check:
    """Tools of one part of the GPU check: functions that measure, and that write the results.

    Attributes:
        part: letter of the part.
        output: folder of the results.
        device: device to measure.
        is_tiny: whether to use small models and few calls, to try the code.
    """

    part: str
    output: Path
    device: torch.device
    is_tiny: bool

    @property
    def has_graphs(self) -> bool:
        """True if the device has CUDA graphs. If not, only eager steps are measured."""
        return self.device.type == "cuda"

    @property
    def modes(self) -> tuple[str, ...]:
        """Measured ways to run steps: "eager", and "graph" if the device has CUDA graphs."""
        return ("eager", "graph") if self.has_graphs else ("eager",)

    def write(self, table: str, name: str, **values: Any) -> None:
        """Append a row of results to rows.jsonl. The row is on the disk when this returns.

        Args:
            table: name of the table on the page of results.
            name: name of the row, which states what was measured.
            values: measured numbers and words, by name. The names of numbers end in the unit.
        """
        row = {"part": self.part, "table": table, "name": name, **rounded(values)}
        if not self.has_graphs and values.get("stepping") == "eager":
            row["note"] = "eager only: no CUDA graphs on this device"
        with (self.output / "rows.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        print(json.dumps(row), flush=True)

    @contextmanager
    def attempt(self, table: str, name: str) -> Iterator[None]:
        """Context manager around measurements that may fail: it writes a row with the error and continues.

        Some kernels do not support all sizes or devices, and memory may be too small.

        Args:
            table: name of the table on the page of results.
            name: name of the row.
        """
        try:
            yield
        except Exception as error:  # so that no failure costs the measurements after it
            self.write(table, name, failed=f"{type(error).__name__}: {error}"[:300])

    def time(self, call: Callable[[], object], num_calls: int = 50, **options: Any) -> Timing:
        """Time a function in several blocks of calls (`time_blocks`), or in one block of two calls for tiny models."""
        if self.is_tiny:
            return time_blocks(call, self.device, 2, num_blocks=1, warm_up_s=0)
        return time_blocks(call, self.device, num_calls, **options)

    def time_kernels(self, call: Callable[[], object], num_repeats: int = 20) -> Timing:
        """Time a function without the cost of launching its kernels from Python.

        For this, `num_repeats` calls are captured in a CUDA graph. Without CUDA graphs, launches count, as in `time`.
        """
        if not self.has_graphs:
            return self.time(call)
        timing = self.time(capture(call, num_repeats), 10, warm_up_s=0.1)
        return Timing(*(seconds / num_repeats for seconds in timing))

    def describe(self) -> None:
        """Write a row that describes the machine."""
        found: dict[str, Any] = {"device": processor_name(self.device.type), "torch": torch.__version__}
        found |= {"python": platform.python_version(), "cores": os.cpu_count()}
        if self.has_graphs:
            properties = torch.cuda.get_device_properties(self.device)
            found |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
            found |= {"memory_gib": properties.total_memory / 2**30}
        self.write("machine", "machine", **found)

    def peak_bandwidth(self) -> float | None:
        """Return the memory bandwidth in the GPU's data sheet, in bytes per second. None if the GPU is unknown."""
        name = processor_name(self.device.type).upper()
        return next((value for card, value in BANDWIDTH.items() if card.upper() in name), None)

    def xl(self, num_tokens: int = 256) -> TargetConfig:
        """Return the sizes of LlamaGen XL for images of `num_tokens` tokens, or tiny sizes if `is_tiny`."""
        if self.is_tiny:
            return SMALL
        return replace(XL, grid=int(num_tokens**0.5))


@cache
def processor_name(device: str) -> str:
    """Return the name of the GPU ("cuda") or of the CPU ("cpu")."""
    return name_processor(describe_machine(), device)


def capture(call: Callable[[], object], num_repeats: int) -> Callable[[], None]:
    """Capture several equal calls as a CUDA graph, and return the function that replays it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(num_repeats):
            call()
    return graph.replay


def make_models(config: TargetConfig, device: torch.device, dtype: torch.dtype) -> DecodingModels:
    """Return models with random weights, prepared for decoding, with arbitrary codes as the table of nearest codes."""
    models = prepare(random_models(config, device, dtype))
    codes = torch.arange(config.vocab_size, device=device)
    table = (codes[:, None] + codes[1 : TABLE_COLUMNS + 1]) % len(codes)
    models.nearest_codes = table.to(code_dtype(len(table)))
    return models


def models_for(models: DecodingModels, spec: MethodSpec) -> DecodingModels:
    """Return the models with the heads that a method needs, and without nearest codes if it does not need them."""
    models = with_heads(models, spec)
    return models if spec.needs_nearest_codes else replace(models, nearest_codes=None)


def chains(*lengths: int) -> list[MethodSpec]:
    """Return Jacobi decoding on chains of the given lengths."""
    return [make_method("jacobi", tree=f"chain{length}", method_id=f"jacobi-chain{length}") for length in lengths]


def methods_of(models: DecodingModels) -> list[MethodSpec]:
    """Return the methods whose steps are timed at batch 1. Some need a draft model, others do not.

    LANTERN's number k of nearest codes is 1000, as in the paper, or the largest that the table of the codes allows.
    """
    table = models.nearest_codes
    k = min(1000, table.shape[1] - 1)
    return [
        make_method("autoregressive"),
        *chains(1, 3, 9, 15, 31),
        make_method("jacobi", tree="jacobi_50", method_id="jacobi-50"),
        make_method("hybrid"),
        make_method("sjd"),
        make_method("coupled", tree="chain3", method_id="coupled-chain3"),
        make_method("eagle1", tree="chain3", method_id="eagle1-chain3"),
        make_method("eagle1", method_id="eagle1-tree57"),
        make_method("eagle2"),
        make_method("lantern", k=k, delta=0.1),
        make_method("lantern_pp", k=10, lambda_=2.0, method_id="lantern_pp-tree57"),
    ]


def load_embedded(
    device: torch.device, dtype: torch.dtype = torch.float32, *, is_prepared: bool = True
) -> DecodingModels:
    """Load the shipped model and its table of nearest codes directly to a device. Its shift heads are untrained.

    Preparation for decoding on a CPU folds norms into matrices and changes the layout of matrices. Models that are not
    prepared run the same code on a CPU as on a GPU.

    Args:
        device: the device.
        dtype: dtype of the weights.
        is_prepared: whether the models are prepared for decoding.
    """
    draft = load_model(FOLDER / "drafter.safetensors", DraftModel, dtype, device)
    target = load_target(FOLDER / "target.safetensors", dtype, device)
    heads = ShiftHeads.from_target(target, num_right=3, seed=0).to(dtype)
    models = DecodingModels(target, draft, parts={"heads": heads})
    if is_prepared:
        prepare(models)
    codebook = lantern.load("embedded").tokenizer.codebook.detach()
    table = nearest_codes(codebook.cpu(), NUM_NEAREST, "l2_normalised")
    models.nearest_codes = table.to(device, code_dtype(len(table)))
    return models


def label(spec: MethodSpec) -> str:
    """Return the name of a method in the results."""
    return spec.method_id or spec.name


def filled_state(decoder: Decoder, batch_size: int) -> DecodingState:
    """Run the prefill of a batch of random prompts, and return the decoding state from which steps can be timed."""
    return fill(decoder, RandomPrompts(decoder.target.config), batch_size)


def emitted_tokens(state: DecodingState) -> torch.Tensor:
    """Return the tokens that a batch has emitted so far, int64 (batch, width), padded with -1.

    After the emitted tokens, the state has values without meaning, which differ between eager steps and CUDA graphs.
    The padding replaces them.
    """
    is_emitted = torch.arange(state.tokens.shape[1], device=state.tokens.device) < state.lengths[:, None]
    return state.tokens.masked_fill(~is_emitted, -1)


def weight_bytes(models: DecodingModels) -> int:
    """Return the number of bytes of the target's weights that an autoregressive step reads."""
    return sum(
        parameter.numel() * parameter.element_size()
        for name, parameter in models.target.named_parameters()
        if not name.startswith(("caption", "null_caption", "prompt_embedding", "token_embedding"))
    )


def free(device: torch.device) -> None:
    """Release PyTorch's unused GPU memory."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
