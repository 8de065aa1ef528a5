"""Ways to run a decoding step.

A step has fixed shapes, changes its state in place and reads nothing back to the host. Its kernels can therefore be
captured once, on the tensors of a state, as a CUDA graph. Later the GPU runs them again without Python between them.

A *limit* is a number of cache slots that attention may read. Attention is faster if it reads only the slots in use, but
a graph has fixed shapes. A state therefore has one graph per limit. They share a stream and a memory pool, which is
safe, because steps run one after the other and leave no data there. Graphs of different states share neither, so that
each state can be freed alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from lantern.kv_cache import round_slots
from lantern.state import DecodingState

log = logging.getLogger(__name__)

MODES = ("auto", "eager", "graph")
GRAPH_SLOTS = 256  # there is a graph for each multiple of this number of slots
MAX_GRAPHS = 8  # per state; for longer images the multiples are larger
NUM_WARMUP = 2  # steps before a capture, in which libraries choose kernels and allocate their workspace
Step = Callable[[DecodingState], None]  # changes the state in place


class StepRunner:
    """Keeps the state of a decoder, and captures its steps as CUDA graphs. If that fails, all steps are run eagerly.

    Methods take the decoder's functions as arguments. If a runner stored them, it and its decoder would refer to each
    other. Their memory would then not be freed at once when the decoder is no longer used.

    The mode "auto" is "graph" on a CUDA device and "eager" on others. `preparation_s` is the time of all captures.
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

    def borrow(self, allocate: Callable[[int], DecodingState], num_rows: int) -> DecodingState:
        """Return a state for `num_rows` images. A caller must not use it after the next call.

        In graph mode, the next call returns the same state if it wants as many images.
        """
        state = self._kept
        if state is None or len(state.tokens) != num_rows:
            state = self._kept = None  # frees the previous state before the next is made
            state = allocate(num_rows)
            # Captures take seconds, so that a state with graphs is kept. In eager mode its memory is freed after use.
            self._kept = None if self.mode == "eager" else state
        return state

    def prepare(self, step: Step, state: DecodingState, limits: Sequence[int]) -> None:
        """Capture a step on the tensors of a new state. In eager mode do nothing.

        All images of the state are complete, so that steps emit nothing. The last of the limits is in force until
        `KVCache.limit` chooses another one.
        """
        if self.mode == "eager":
            return
        begun = time.perf_counter()
        try:
            state.graphs = capture(step, state, limits)
        except Exception as error:  # any kind: of CUDA, of Triton, or of a user's class that reads from the GPU
            state.cache.limit(limits[-1])
            log.warning("steps of %s are run eagerly: capturing them failed: %s", self.name, error)
            self.mode = "eager"
        seconds = time.perf_counter() - begun
        self.preparation_s += seconds
        log.info("%s of a step of %s, batch %d: %.1f s", self.mode, self.name, len(state.tokens), seconds)


def capture(step: Step, state: DecodingState, limits: Sequence[int]) -> dict[int, torch.cuda.CUDAGraph]:
    """Return a graph of the step for each limit. The capture may raise any exception."""
    graphs = {}
    with torch.cuda.device(state.tokens.device):
        outside, stream, pool = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.graph_pool_handle()
        # Capture is not allowed on the default stream. The streams wait for each other, since both work on the state.
        stream.wait_stream(outside)
        with torch.cuda.stream(stream):  # torch.cuda.graph does not restore the current stream if a capture fails
            for limit in limits:
                state.cache.limit(limit)
                for _ in range(NUM_WARMUP):
                    step(state)
                # A graph keeps the address of cuBLAS's workspace. It must be in the graph's own pool, because PyTorch
                # frees other workspaces with the thread, or with another graph, that used the same stream.
                torch._C._cuda_clearCublasWorkspaces()
                graphs[limit] = torch.cuda.CUDAGraph()
                # Other threads may run meanwhile. Their CUDA calls must not end the capture.
                with torch.cuda.graph(graphs[limit], pool=pool, stream=stream, capture_error_mode="thread_local"):
                    step(state)
            torch._C._cuda_clearCublasWorkspaces()  # so that no later user of the stream writes to that workspace
        outside.wait_stream(stream)
    return graphs


def slot_limits(num_slots: int, num_least: int) -> list[int]:
    """Return at most MAX_GRAPHS limits: multiples of GRAPH_SLOTS or more from `num_least` on, and all slots."""
    # ceil(num_slots / MAX_GRAPHS), so that multiples of it up to num_slots are at most MAX_GRAPHS.
    unit = max(GRAPH_SLOTS, round_slots(-(-num_slots // MAX_GRAPHS)))
    return [*(limit for limit in range(unit, num_slots, unit) if limit >= num_least), num_slots]


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Context manager or decorator. cuDNN's attention takes up to half a second to plan for each new shape.

    A shape is a combination of batch size, nodes and slots.
    """
    was_enabled = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(was_enabled)
