"""Stepping: a step replays from its operations, runs on fake GPU tensors, and is captured once per state."""

from __future__ import annotations

import logging
from contextlib import contextmanager, nullcontext
from dataclasses import fields, is_dataclass
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from conftest import make_models, make_prompts
from lantern import rules, stepping
from lantern.decoding import Decoder, DecodingModels
from lantern.decoding_state import Generation
from lantern.generation import generate_records
from lantern.methods import PRESETS, RELAXATIONS, make_method
from lantern.models.draft import DraftModel
from lantern.models.target import TargetModel
from lantern.prompts import Prompt
from lantern.sampling import SamplingConfig
from lantern.stepping import StepRunner
from lantern_pipeline.data.text_encoders import WordEmbeddingEncoder

METHODS = [(name, {}) for name in PRESETS] + [("sjd_pac", {"relaxation": "public_tree"})]
BOUNDS = {"k": 4, "delta": 0.1, "lambda_": 2.0, "omega": 1.1, "threshold": 0.5, "window": 2}
# Temperature, and the logits of a step above which large trees are judged along the path alone.
SETTINGS = [(0.0, 2**16), (1.0, 2**16), (1.0, 0)]


def make_decoder(models, name: str, temperature: float = 1.0, stepping: str = "auto", **parts) -> Decoder:
    """Of a preset, with the parameters that it takes."""
    wanted = RELAXATIONS[PRESETS[name]["relaxation"]].parameters
    spec = make_method(name, **{key: BOUNDS[key] for key in wanted if key in BOUNDS}, **parts)
    return Decoder(models, spec, SamplingConfig(temperature, top_k=8, cfg_scale=2.0), stepping=stepping)


def make_batches(decoder: Decoder, models) -> list[tuple]:
    """Two batches of three prompts, with their noise."""
    features, mask = make_prompts(models, 6)
    noise = [decoder.make_noise(7, f"prompt-{i}") for i in range(6)]
    return [(features[part], mask[part], noise[part]) for part in (slice(0, 3), slice(3, 6))]


class Tape(TorchDispatchMode):
    """Records operations with the tensors that they read and gave; `replay` does them again in the same places."""

    def __init__(self):
        super().__init__()
        self.calls, self.num_replays = [], 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self):
        self.num_replays += 1
        assert self.num_replays < 100, "replayed steps do not come to an end"
        for func, args, kwargs, result in self.calls:
            for place, value in zip(tree_leaves(result), tree_leaves(func(*args, **kwargs)), strict=True):
                if (
                    isinstance(place, torch.Tensor) and place.data_ptr() != value.data_ptr()
                ):  # neither view nor in place
                    place.copy_(value)


@pytest.fixture
def tapes(monkeypatch):
    """In the place of CUDA graphs: they know a step's operations and addresses, but none of its Python."""
    tapes = []

    def record(decoder, state):
        tapes.append(Tape())
        with torch.inference_mode(), tapes[-1]:
            decoder.step(state)
        return tapes[-1]

    monkeypatch.setattr(stepping, "capture", record)
    return tapes


def captured(decoder: Decoder) -> Decoder:
    """The decoder as on a GPU."""
    other = decoder.stepped("eager")
    other.runner = StepRunner("auto", torch.device("cuda"))
    return other


def assert_equal(found: Generation, expected: Generation) -> None:
    for field in fields(expected):
        assert torch.equal(getattr(found, field.name), getattr(expected, field.name)), field.name


@pytest.mark.parametrize(("temperature", "many_logits"), SETTINGS)
@pytest.mark.parametrize(("name", "parts"), METHODS)
def test_a_recorded_step_draws_the_same_images(models, name, parts, temperature, many_logits, tapes, monkeypatch):
    """A step on a state without prompts is recorded once, and replayed for two batches after each other."""
    monkeypatch.setattr(rules, "MANY_LOGITS", many_logits)
    decoder = make_decoder(models, name, temperature, **parts)
    expected = [decoder.generate(*batch) for batch in make_batches(decoder, models)]
    graphed = captured(decoder)
    found = [graphed.generate(*batch) for batch in make_batches(decoder, models)]
    for ours, theirs in zip(found, expected, strict=True):
        assert_equal(ours, theirs)
    assert len(tapes) == 1 and tapes[0].num_replays >= sum(int(part.target_forwards.max()) - 1 for part in expected)
    assert (name == "autoregressive") == bool((expected[0].target_forwards == 16).all())


def reachable_tensors(owner: object, path: str = "state") -> dict[str, torch.Tensor]:
    """Tensors in an object's attributes, lists and dictionaries, by where they are found."""
    if isinstance(owner, torch.Tensor):
        return {path: owner}
    if isinstance(owner, list | tuple):
        parts = enumerate(owner)
    elif isinstance(owner, dict):
        parts = owner.items()
    elif is_dataclass(owner) or type(owner).__module__.startswith("lantern."):
        parts = vars(owner).items()
    else:
        return {}
    found = {}
    for name, part in parts:
        found |= reachable_tensors(part, f"{path}.{name}")
    return found


@pytest.mark.parametrize(("name", "parts"), METHODS)
def test_a_states_tensors_stay_where_they_are(models, name, parts):
    decoder = make_decoder(models, name, **parts)
    batches = make_batches(decoder, models)

    def addresses():
        found = {path: tensor for path, tensor in reachable_tensors(state).items() if "_images" not in path}
        return {path: (tensor.data_ptr(), tensor.shape, tensor.stride()) for path, tensor in found.items()}

    state = decoder.allocate(3)
    before = addresses()
    assert {"state.tokens", "state.cache.entries", "state.cache.layers.0.keys"} < set(before)
    for batch in batches:
        decoder.fill(state, range(3), *batch)
        for _ in range(3):
            decoder.step(state)
            assert addresses() == before


class OnDevice(TorchDispatchMode):
    """Raises where tensors of another device take part; the values of fake tensors cannot be read anyway."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, kwargs, result)):
            assert not isinstance(tensor, torch.Tensor) or tensor.device.type == "cuda", f"{func} on {tensor.device}"
        return result


def to_fake(owner: object, fake: FakeTensorMode, device: str) -> None:
    """Puts fake tensors on a device in the place of an object's own."""
    parts = vars(owner) if hasattr(owner, "__dict__") else owner
    for name, part in parts.items() if isinstance(parts, dict) else enumerate(parts):
        if isinstance(part, torch.device):
            parts[name] = torch.device(device)
        elif isinstance(part, torch.Tensor):
            parts[name] = fake.from_tensor(part).to(device)
        elif isinstance(part, list | dict | torch.nn.Module) or type(part).__module__.startswith("lantern."):
            to_fake(part, fake, device)


@pytest.mark.parametrize(("temperature", "many_logits"), SETTINGS)
@pytest.mark.parametrize(("name", "parts"), METHODS)
def test_a_step_stays_on_its_gpu(name, parts, temperature, many_logits, monkeypatch):
    """On fake tensors, which have a device and a shape, and no values that a step could read."""
    monkeypatch.setattr(rules, "MANY_LOGITS", many_logits)
    models, fake = make_models(), FakeTensorMode(allow_non_fake_inputs=True)
    models = DecodingModels(TargetModel(models.target.config), DraftModel(models.draft.config), models.nearest_codes)
    decoder = make_decoder(models, name, temperature, **parts)
    batch = list(make_batches(decoder, models)[0])
    with fake, torch.inference_mode():
        to_fake(decoder, fake, "cuda")
        to_fake(batch, fake, "cpu")
        for model in (models.target, models.draft):
            model.prepare_for_decoding()
        state = decoder.allocate(3)
        decoder.fill(state, range(3), *batch)
        with OnDevice():
            decoder.step(state)
    assert all(isinstance(tensor, FakeTensor) for tensor in reachable_tensors(state).values())


PROMPTS = [Prompt(f"p{i}", text) for i, text in enumerate(["a red circle", "a blue square", "grass", "sand", "a hill"])]


def make_records(decoder: Decoder):
    encoder = WordEmbeddingEncoder(None, 16, 5, 0)
    return generate_records(decoder, PROMPTS, encoder, run_seed=3, batch_size=2)


def test_rows_of_a_recorded_step_take_the_next_prompt(models, tapes):
    decoder = make_decoder(models, "eagle1")
    expected, found = make_records(decoder), make_records(captured(decoder))
    assert torch.equal(found.codes, expected.codes) and torch.equal(found.step_lengths, expected.step_lengths)
    assert (found.metadata["stepping"], expected.metadata["stepping"]) == ("graph", "eager") and len(tapes) == 1
    assert found.metadata["preparation_s"] > 0 == expected.metadata["preparation_s"]


def test_a_step_is_recorded_for_every_size_of_a_batch_and_one_state_is_kept(models, tapes):
    decoder = captured(make_decoder(models, "jacobi"))
    states = [decoder.runner.borrow(decoder, num_rows) for num_rows in (3, 3, 2, 3)]
    assert states[0] is states[1] and len({id(state) for state in states}) == len(tapes) == 3
    for state in states:
        assert not state.num_steps.any() and (state.lengths == 16).all()  # what was recorded emitted nothing


def test_where_a_capture_fails_steps_are_run_eagerly_and_records_say_so(models, monkeypatch, caplog):
    def fail(decoder, state):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(stepping, "capture", fail)
    decoder = make_decoder(models, "eagle1")
    graphed = captured(decoder)
    assert graphed.runner.mode == "graph"
    with caplog.at_level(logging.WARNING, "lantern.stepping"):
        found = [make_records(graphed) for _ in range(2)]
    assert [record.getMessage() for record in caplog.records] == [
        "steps of eagle1 are run eagerly: the capture failed: operation not permitted when stream is capturing"
    ]
    for records in found:
        assert torch.equal(records.codes, make_records(decoder).codes)
        assert records.metadata["stepping"] == "eager"


def test_a_capture_follows_two_steps_and_shares_the_pool_of_living_graphs(monkeypatch):
    """The calls of `capture`, on a stand-in for torch.cuda."""
    calls, pools = [], iter("abc")

    class Graph:
        def pool(self):
            return self._pool

    @contextmanager
    def record(graph, pool, capture_error_mode):
        graph._pool = pool or next(pools)
        calls.append("begin")
        yield
        calls.append("end")

    stream = SimpleNamespace(wait_stream=lambda other: calls.append("wait"))
    anything = {"device": lambda device: nullcontext(), "stream": lambda stream: nullcontext()}
    streams = {"Stream": lambda: stream, "current_stream": lambda: stream}
    cuda = SimpleNamespace(CUDAGraph=Graph, graph=record, **streams, **anything)
    monkeypatch.setattr(stepping, "torch", SimpleNamespace(cuda=cuda))
    decoder = SimpleNamespace(device="cuda", step=lambda state: calls.append("step"))
    graphs = [stepping.capture(decoder, None) for _ in range(2)]
    assert calls[:7] == ["wait", "step", "step", "wait", "begin", "step", "end"]
    assert [graph.pool() for graph in graphs] == ["a", "a"]
    del graphs
    assert stepping.capture(decoder, None).pool() == "b"  # with its last graph a pool may be gone


def test_watched_steps_are_run_eagerly(models, tapes):
    decoder = captured(make_decoder(models, "eagle1"))
    batch, outcomes = make_batches(decoder, models)[0], []
    decoder.observer = outcomes.append
    expected = decoder.generate(*batch)
    assert len(outcomes) >= expected.target_forwards.max() - 1 and tapes[0].num_replays == 0
    decoder.observer = None
    assert_equal(decoder.generate(*batch), expected)
    assert tapes[0].num_replays > 0


def test_ways_to_step_are_checked(models):
    with pytest.raises(ValueError, match="stepping must be one of auto, eager, graph, got 'lazy'"):
        make_decoder(models, "eagle1", stepping="lazy")
    with pytest.raises(ValueError, match="stepping graph needs a CUDA device, got cpu; use auto or eager"):
        make_decoder(models, "eagle1", stepping="graph")
    assert make_decoder(models, "eagle1").runner.mode == "eager"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("temperature", "many_logits"), SETTINGS)
@pytest.mark.parametrize(("name", "parts"), METHODS)
def test_captured_steps_draw_the_same_images(name, parts, temperature, many_logits, monkeypatch):
    monkeypatch.setattr(rules, "MANY_LOGITS", many_logits)
    models = make_models()
    models = DecodingModels(
        models.target.cuda().prepare_for_decoding(),
        models.draft.cuda().prepare_for_decoding(),
        models.nearest_codes.cuda(),
    )
    decoder = make_decoder(models, name, temperature, **parts)
    assert decoder.runner.mode == "graph"
    for batch in make_batches(decoder, models):
        assert_equal(decoder.generate(*batch), decoder.stepped("eager").generate(*batch))
    assert decoder.runner.mode == "graph"
