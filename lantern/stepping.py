"""Ways to run a decoding step: one operation after the other, or as a CUDA graph.

A step has fixed shapes, changes its state in place and reads nothing back. Its kernels can therefore be captured once
on the tensors of a state and launched again together, without Python between them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from weakref import WeakSet

import torch

from lantern.decoding_state import DecodingState

log = logging.getLogger(__name__)

MODES = ("auto", "eager", "graph")
NUM_WARMUP = 2  # steps before a capture, in which libraries choose kernels and allocate their workspace
Step = Callable[[DecodingState], None]  # changes the state in place
_graphs: WeakSet = WeakSet()  # graphs that are in use


class StepRunner:
    """Runs decoding steps eagerly or as a CUDA graph.

    A graph belongs to one state. All graphs share one memory pool, since steps run in turn and leave nothing there. If
    a capture fails, all later steps are run eagerly.

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
        """Run a step on a state: launch the state's graph, or call `step` if it has none."""
        if state.graph is not None:
            state.graph.replay()
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

    def prepare(self, step: Step, state: DecodingState) -> None:
        """Capture a step on a new state, unless steps are run eagerly.

        Args:
            step: the step.
            state: a state whose rows are all complete, so that steps emit nothing.
        """
        if self.mode == "eager":
            return
        begun = time.perf_counter()
        try:
            state.graph = capture(step, state)
        except RuntimeError as error:
            log.warning("steps of %s are run eagerly: capturing them failed: %s", self.name, error)
            self.mode = "eager"
        seconds = time.perf_counter() - begun
        self.preparation_s += seconds
        log.info("%s of a step of %s, batch %d: %.1f s", self.mode, self.name, len(state.tokens), seconds)


def capture(step: Step, state: DecodingState) -> torch.cuda.CUDAGraph:
    """Capture a step as a CUDA graph, after `NUM_WARMUP` steps that are run eagerly.

    Args:
        step: the step.
        state: a state whose rows are all complete.

    Raises:
        RuntimeError: the step cannot be captured.
    """
    with torch.cuda.device(state.tokens.device):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(NUM_WARMUP):
                step(state)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        pool = next((other.pool() for other in _graphs), None)
        # Threads that make noise meanwhile touch no GPU, but whatever else they call must not end the capture.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            step(state)
    _graphs.add(graph)
    return graph
