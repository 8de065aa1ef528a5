"""Ways to run a decoding step: one operation after the other, or as a CUDA graph.

A step has fixed shapes, changes its state in place and reads nothing back. Its kernels can therefore be captured once
on the tensors of a state and launched again together, without Python between them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from lantern.decoding_state import DecodingState
from lantern.kv_cache import round_slots

log = logging.getLogger(__name__)

MODES = ("auto", "eager", "graph")
GRAPH_SLOTS = 256  # a step is captured for every so many slots that it reads
MAX_GRAPHS = 8  # per state; with longer images a graph is for more slots
NUM_WARMUP = 2  # steps before a capture, in which libraries choose kernels and allocate their workspace
Step = Callable[[DecodingState], None]  # changes the state in place


class StepRunner:
    """Runs decoding steps eagerly or as a CUDA graph.

    A state has a graph per limit on the slots that its steps read, see `KVCache.limit`. The graphs of a state share a
    stream and a memory pool, since steps run in turn and leave nothing there. Graphs of different states share neither:
    a graph that is freed takes the workspace of its stream along. If a capture fails, all later steps are run eagerly.

    Methods take the decoder's functions as arguments. If a runner kept them, it and its decoder would refer to each
    other, and their memory would not be freed as soon as the decoder is dropped.

    Args:
        mode: "eager", "graph" or "auto": "graph" on a CUDA device and "eager" elsewhere.
        device: the device of the states.
        name: the method's name in log messages.

    Attributes:
        mode: the mode in use, "eager" or "graph".
        preparation_s: seconds that captures have taken.

    Raises:
        ValueError: the mode is unknown, or it is "graph" and the device is not a CUDA device.
    """

    def __init__(self, mode: str, device: torch.device, name: str) -> None:
        if mode not in MODES:
            raise ValueError(f"stepping must be one of {', '.join(MODES)}, got {mode!r}")
        if mode == "graph" and device.type != "cuda":
            raise ValueError(f"stepping graph needs a CUDA device, got {device}; use auto or eager")
        if mode == "auto":
            mode = "graph" if device.type == "cuda" else "eager"
        self.mode, self.name, self.preparation_s = mode, name, 0.0
        self._kept: DecodingState | None = None

    def step(self, step: Step, state: DecodingState) -> None:
        """Run a step on a state: launch the graph for the slots in use, or call `step` if there are no graphs."""
        if state.graphs:
            state.graphs[state.cache.num_used].replay()
        else:
            step(state)

    def borrow(self, allocate: Callable[[int], DecodingState], num_rows: int) -> DecodingState:
        """Return a state for `num_rows` images.

        In graph mode it may be the previous one, reused. Finish with that before the next call.

        Args:
            allocate: makes a state for a number of images.
            num_rows: number of images.
        """
        state = self._kept
        if state is None or len(state.tokens) != num_rows:
            state = self._kept = None  # frees the previous state before the next is made
            state = allocate(num_rows)
            self._kept = None if self.mode == "eager" else state
        return state

    def prepare(self, step: Step, state: DecodingState, limits: Sequence[int] = ()) -> None:
        """Capture a step on a new state, unless steps are run eagerly.

        Args:
            step: the step.
            state: a state whose rows are all complete, so that steps emit nothing.
            limits: numbers of slots that steps may read, of which the last is used until `KVCache.limit` chooses
                another. By default the cache's present number.
        """
        if self.mode == "eager":
            return
        begun, limits = time.perf_counter(), limits or (state.cache.num_used,)
        try:
            state.graphs = capture(step, state, limits)
        except RuntimeError as error:
            state.cache.limit(limits[-1])
            log.warning("steps of %s are run eagerly: capturing them failed: %s", self.name, error)
            self.mode = "eager"
        seconds = time.perf_counter() - begun
        self.preparation_s += seconds
        log.info("%s of a step of %s, batch %d: %.1f s", self.mode, self.name, len(state.tokens), seconds)


def capture(step: Step, state: DecodingState, limits: Sequence[int]) -> dict[int, torch.cuda.CUDAGraph]:
    """Capture a step as CUDA graphs, each after `NUM_WARMUP` steps that are run eagerly.

    Args:
        step: the step.
        state: a state whose rows are all complete.
        limits: see `StepRunner.prepare`.

    Returns:
        The graphs, by limit.

    Raises:
        RuntimeError: the step cannot be captured.
    """
    graphs = {}
    with torch.cuda.device(state.tokens.device):
        stream, pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
        for limit in limits:
            state.cache.limit(limit)
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(NUM_WARMUP):
                    step(state)
            torch.cuda.current_stream().wait_stream(stream)
            graphs[limit] = torch.cuda.CUDAGraph()
            # Threads that make noise meanwhile touch no GPU, but whatever else they call must not end the capture.
            with torch.cuda.graph(graphs[limit], pool=pool, stream=stream, capture_error_mode="thread_local"):
                step(state)
    return graphs


def slot_limits(num_slots: int, num_least: int) -> list[int]:
    """Return numbers of slots for which steps are captured: multiples of `GRAPH_SLOTS`, and all slots.

    Args:
        num_slots: number of slots of a row.
        num_least: number of slots that the first steps read.
    """
    unit = max(GRAPH_SLOTS, round_slots(-(-num_slots // MAX_GRAPHS)))
    return [*(limit for limit in range(unit, num_slots, unit) if limit >= num_least), num_slots]


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Keep PyTorch from choosing cuDNN's attention within the block.

    It would build a plan, which takes up to half a second, for every number of rows, nodes and slots.
    """
    was_enabled = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(was_enabled)
