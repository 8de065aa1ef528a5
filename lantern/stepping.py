"""How a decoder's steps are run: one operation after the other, or as a CUDA graph.

A step has fixed shapes, changes its state in place and reads nothing back, so that its kernels can be captured once on
a state's tensors and launched again together, without Python between them.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING
from weakref import WeakSet

import torch

if TYPE_CHECKING:
    from lantern.decoding import Decoder, DecodingState

log = logging.getLogger(__name__)

MODES = ("auto", "eager", "graph")
NUM_WARMUP = 2  # steps before a capture, in which libraries choose kernels and take their workspace
_graphs: WeakSet = WeakSet()  # those in use


class StepRunner:
    """Runs a decoder's steps eagerly or as a graph; "auto" is "graph" on a CUDA device and "eager" elsewhere.

    A graph belongs to one state; all graphs share one pool of memory, since their steps run in turn and leave nothing
    there. Where a capture fails, steps are run eagerly from then on.

    Attributes:
        mode: what is really used: "eager" or "graph".
        preparation_s: seconds that captures have taken.

    Raises:
        ValueError: an unknown mode, or a graph elsewhere than on a CUDA device.
    """

    def __init__(self, mode: str, device: torch.device) -> None:
        if mode not in MODES:
            raise ValueError(f"stepping must be one of {', '.join(MODES)}, got {mode!r}")
        if mode == "graph" and device.type != "cuda":
            raise ValueError(f"stepping graph needs a CUDA device, got {device}; use auto or eager")
        if mode == "auto":
            mode = "graph" if device.type == "cuda" else "eager"
        self.mode, self.preparation_s = mode, 0.0
        self._kept: DecodingState | None = None

    def step(self, decoder: Decoder, state: DecodingState) -> None:
        """Makes a step; changes the state in place."""
        if state.graph is not None:
            state.graph.replay()
        else:
            decoder.step(state)

    def borrow(self, decoder: Decoder, num_rows: int) -> DecodingState:
        """A state to be filled and done with before another is borrowed: the last one again if it has as many rows,
        unless steps are eager, which need no preparation.
        """
        state = self._kept
        if state is None or len(state.tokens) != num_rows:
            state = self._kept = None  # is freed before the next is made
            state = decoder.allocate(num_rows)
            self._kept = None if self.mode == "eager" else state
        return state

    def prepare(self, decoder: Decoder, state: DecodingState) -> None:
        """Captures the step; all rows of the state must be complete, so that steps emit nothing."""
        if self.mode == "eager":
            return
        begun = time.perf_counter()
        try:
            state.graph = capture(decoder, state)
        except RuntimeError as error:
            log.warning("steps of %s are run eagerly: capturing them failed: %s", decoder.spec.name, error)
            self.mode = "eager"
        seconds = time.perf_counter() - begun
        self.preparation_s += seconds
        log.info("%s of a step of %s, batch %d: %.1f s", self.mode, decoder.spec.name, len(state.tokens), seconds)


def capture(decoder: Decoder, state: DecodingState) -> torch.cuda.CUDAGraph:
    """Captures a step on a state of complete rows, after some that are run.

    Raises:
        RuntimeError: the step cannot be captured.
    """
    with torch.cuda.device(decoder.device):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(NUM_WARMUP):
                decoder.step(state)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        pool = next((other.pool() for other in _graphs), None)
        # Threads that make noise meanwhile touch no GPU, but whatever else they call must not end the capture.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            decoder.step(state)
    _graphs.add(graph)
    return graph
