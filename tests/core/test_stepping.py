"""Tests of steps: each state is captured once; observed steps, and steps that cannot be captured, run eagerly."""

from __future__ import annotations

import gc
import logging
import weakref
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from helpers.captured_steps import captured
from helpers.every_method import assert_equal, decoder_of, make_batches
from helpers.tiny_records import make_records
from lantern import decoding, stepping
from lantern.custom_parts import CustomPartError
from lantern.kv_cache import KVCache


def test_rows_of_a_recorded_step_take_the_next_prompt(models, tapes):
    decoder = decoder_of(models, "eagle1")
    expected, found = make_records(decoder, 2), make_records(captured(decoder), 2)
    assert torch.equal(found.codes, expected.codes) and torch.equal(found.step_lengths, expected.step_lengths)
    assert (found.metadata["stepping"], expected.metadata["stepping"]) == ("graph", "eager") and len(tapes) == 1
    assert found.metadata["preparation_s"] > 0 == expected.metadata["preparation_s"]


def test_a_step_is_recorded_for_every_size_of_a_batch_and_one_state_is_kept(models, tapes):
    decoder = captured(decoder_of(models, "jacobi"))
    states = [decoder.runner.borrow(decoder.allocate, num_rows) for num_rows in (3, 3, 2, 3)]
    assert states[0] is states[1] and len({id(state) for state in states}) == len(tapes) == 3
    for state in states:
        assert not state.num_steps.any() and (state.lengths == 16).all()  # recording emits nothing


def test_where_a_capture_fails_steps_are_run_eagerly_and_records_say_so(models, monkeypatch, caplog):
    """A user's class that reads from the GPU raises another error than PyTorch."""

    def fail(step, state, limits):
        raise CustomPartError("propose failed")

    monkeypatch.setattr(stepping, "capture", fail)
    decoder = decoder_of(models, "eagle1")
    graphed = captured(decoder)
    assert graphed.runner.mode == "graph"
    with caplog.at_level(logging.WARNING, "lantern.stepping"):
        found = [make_records(graphed, 2) for _ in range(2)]
    assert [record.getMessage() for record in caplog.records] == [
        "steps of eagle1 are run eagerly: capturing them failed: propose failed"
    ]
    for records in found:
        assert torch.equal(records.codes, make_records(decoder, 2).codes)
        assert records.metadata["stepping"] == "eager"


class FakeCuda:
    """Stand-in for torch.cuda, which records the calls of `capture`.

    Attributes:
        calls: names of the calls.
        pools: pool and stream of each capture.
        current: the current stream.
        error: raised by the end of a capture, as CUDA does if a captured operation was not permitted. None for none.
    """

    CUDAGraph = object

    def __init__(self) -> None:
        self.calls, self.pools, self.error = [], [], None
        self.current, self._names = SimpleNamespace(wait_stream=self.wait), iter("abc")
        self.torch = SimpleNamespace(
            cuda=self, _C=SimpleNamespace(_cuda_clearCublasWorkspaces=lambda: self.calls.append("clear"))
        )

    def wait(self, other):
        self.calls.append("wait")

    def device(self, device):
        return nullcontext()

    def current_stream(self):
        return self.current

    def graph_pool_handle(self):
        return next(self._names)

    def Stream(self):
        return SimpleNamespace(wait_stream=self.wait)

    @contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def graph(self, graph, pool, stream, capture_error_mode):
        self.pools.append((pool, stream))
        self.current = stream
        self.calls.append("begin")
        yield
        self.calls.append("end")
        if self.error is not None:
            raise self.error


def capture_with(cuda, monkeypatch):
    """Capture a step with a stand-in for torch.cuda."""
    monkeypatch.setattr(stepping, "torch", cuda.torch)
    state = SimpleNamespace(tokens=SimpleNamespace(device="cuda"), cache=SimpleNamespace(limit=cuda.calls.append))
    return stepping.capture(lambda stepped: cuda.calls.append("step"), state, (8, 16))


def test_a_capture_follows_two_steps_and_graphs_of_one_state_share_stream_and_pool(monkeypatch):
    """cuBLAS allocates a new workspace within the capture, so that it lies in the pool of the graph."""
    cuda = FakeCuda()
    graphs = [capture_with(cuda, monkeypatch) for _ in range(2)]
    steps = ["step", "step", "clear", "begin", "step", "end"]
    assert cuda.calls == 2 * ["wait", 8, *steps, 16, *steps, "clear", "wait"]
    assert [list(found) for found in graphs] == [[8, 16], [8, 16]]
    assert [pool for pool, _ in cuda.pools] == ["a", "a", "b", "b"]
    streams_used = [stream for _, stream in cuda.pools]
    assert streams_used[0] is streams_used[1] is not streams_used[2] is streams_used[3]


def test_a_failed_capture_restores_the_current_stream(monkeypatch):
    """torch.cuda.graph does not restore it if a capture ends with an error."""
    cuda = FakeCuda()
    cuda.error, before = RuntimeError("operation failed due to a previous error during capture"), cuda.current
    with pytest.raises(RuntimeError, match="previous error"):
        capture_with(cuda, monkeypatch)
    assert cuda.current is before


@pytest.mark.parametrize(
    ("num_slots", "num_least", "expected"),
    [(24, 14, [24]), (256, 130, [256]), (1168, 130, [256, 512, 768, 1024, 1168]), (1168, 300, [512, 768, 1024, 1168])],
)
def test_steps_are_captured_for_every_256_slots(num_slots, num_least, expected):
    assert stepping.slot_limits(num_slots, num_least) == expected


def test_a_long_image_has_few_graphs():
    limits = stepping.slot_limits(8328, 130)
    assert limits == [*range(1048, 8328, 1048), 8328] and len(limits) == stepping.MAX_GRAPHS


@pytest.mark.parametrize("name", ["jacobi", "eagle1", "zipar"])
def test_recorded_steps_read_little_more_than_the_slots_in_use(models, tapes, monkeypatch, name):
    """The graph with the fewest sufficient slots runs, and images equal those of steps that read all slots."""
    plain = decoder_of(models, name)
    (batch, *_), limits = make_batches(plain, models), []
    expected = plain.generate(*batch)
    monkeypatch.setattr(stepping, "GRAPH_SLOTS", 8)
    monkeypatch.setattr(decoding, "FEWEST_STEPS", 1)
    decoder, limit = captured(plain), KVCache.limit
    monkeypatch.setattr(KVCache, "limit", lambda cache, used: (limits.append(used), limit(cache, used)))
    found = decoder.generate(*batch)
    torch.testing.assert_close(found.codes, expected.codes)
    assert torch.equal(found.accepted_lengths, expected.accepted_lengths)
    is_used = [tape.num_replays > 0 for tape in tapes]
    assert limits[: len(tapes)] == sorted(set(limits)) and is_used[-1]
    assert (sum(is_used) > 1) == (name != "zipar")  # lines are far apart


def test_attention_of_cudnn_is_off_while_images_are_decoded(models, monkeypatch):
    decoder, seen = decoder_of(models, "jacobi"), []
    step = decoder.step
    monkeypatch.setattr(
        decoder, "step", lambda state: (seen.append(torch.backends.cuda.cudnn_sdp_enabled()), step(state))
    )
    decoder.generate(*make_batches(decoder, models)[0])
    assert seen and not any(seen) and torch.backends.cuda.cudnn_sdp_enabled()


def test_a_decoder_is_freed_as_soon_as_it_is_dropped(models, tapes):
    """If this needed the garbage collector, two decoders and their caches could fill a GPU."""
    decoder = captured(decoder_of(models, "eagle1"))
    decoder.generate(*make_batches(decoder, models)[0])
    kept = weakref.ref(decoder)
    gc.disable()
    try:
        del decoder
        assert kept() is None
    finally:
        gc.enable()


def test_watched_steps_are_run_eagerly(models, tapes):
    decoder = captured(decoder_of(models, "eagle1"))
    batch, outcomes = make_batches(decoder, models)[0], []
    decoder.observer = outcomes.append
    expected = decoder.generate(*batch)
    assert len(outcomes) >= expected.target_forwards.max() - 1 and tapes[0].num_replays == 0
    decoder.observer = None
    assert_equal(decoder.generate(*batch), expected)
    assert tapes[0].num_replays > 0


def test_the_hook_sees_every_forward_and_steps_stay_captured(models, tapes):
    plain = decoder_of(models, "eagle1")
    for decoder in (plain, captured(plain)):
        (batch, *_), calls = make_batches(decoder, models), []
        decoder.on_forward = lambda calls=calls: calls.append(len(calls))
        found = decoder.generate(*batch)
        assert len(calls) == found.target_forwards.max() > 1
    assert tapes[0].num_replays == found.target_forwards.max() - 1


def test_ways_to_step_are_checked(models):
    with pytest.raises(ValueError, match="stepping must be one of auto, eager, graph, got 'lazy'"):
        decoder_of(models, "eagle1", stepping="lazy")
    with pytest.raises(ValueError, match="stepping graph needs a CUDA device, got cpu"):
        decoder_of(models, "eagle1", stepping="graph")
    assert decoder_of(models, "eagle1").runner.mode == "eager"
