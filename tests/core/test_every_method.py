"""Tests of what must hold for every preset in every setting; each is generated once.

A setting is a temperature and a number of logits. Trees with more logits are verified along the path only, if the
method can follow a path.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import is_dataclass
from functools import cache

import pytest
import torch
from every_method import METHODS, spec_of, with_heads
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from helpers.captured_steps import NoHostSync, captured
from helpers.every_method import assert_equal, decoder_of, fill_on_fake_gpu, make_batches
from helpers.tiny_models import make_models, make_prompts, start
from lantern.acceptance import base
from lantern.acceptance.base import Verifier
from lantern.decoding import make_decoder
from lantern.noise import ImageNoise, NoiseField, Stream
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels

# `make test` runs one method of each kind of drafter and acceptance.
KINDS = ("eagle1", "eagle2", "lantern_pp", "jacobi", "hybrid", "cool", "ensemble", "sjd", "scd", "gsd", "path_relax")
KINDS += ("zipar", "pjd", "ssd", "mixing_of_siblings", "heads", "heads_of_jacobi", "hybrid_head")
# Methods that can follow a path. Those of the first line are fast: one per verifier, and one with another residual.
FAST_ON_PATH = ("eagle1", "lantern", "proximity", "lantern_official")
ON_PATH = ("eagle2", "lantern_pp", "coupled", "bounded", "lantern_matched", "lantern_jensen_shannon", "group_of_eagle")
COMPILED = ("lantern_pp", "proximity", "hybrid", "gsd", "mixing_of_siblings", "path_relax", "pjd", "ssd")
COMPILED += ("heads_of_jacobi", "hybrid_head")


def case(name: str, temperature: float, is_fast: bool, *others: object):
    return pytest.param(name, temperature, *others, marks=[] if is_fast else pytest.mark.slow)


# At temperature 0, a relaxed set and a mixture are fast, too.
SETTINGS = [(name, 1.0, name in KINDS) for name in METHODS]
SETTINGS += [
    (name, 0.0, name in ("lantern_pp", "mixing_of_siblings")) for name in [*KINDS, "autoregressive", "proximity"]
]
CASES = [case(*row, 2**16) for row in SETTINGS]
CASES += [case(name, 1.0, name in FAST_ON_PATH, 0) for name in [*FAST_ON_PATH, *ON_PATH]]


@cache
def autoregressive_codes(temperature: float, line_end: int | None = None) -> tuple[torch.Tensor, ...]:
    models = make_models(line_end=line_end)
    decoder = decoder_of(models, "autoregressive", temperature)
    return tuple(decoder.generate(*batch).codes for batch in make_batches(decoder, models))


def reachable_tensors(owner: object, path: str = "state") -> dict[str, torch.Tensor]:
    """Return the tensors in attributes, lists and dictionaries of an object, keyed by their path."""
    if isinstance(owner, torch.Tensor):
        return {path: owner}
    if isinstance(owner, list | tuple):
        parts = enumerate(owner)
    elif isinstance(owner, dict):
        parts = owner.items()
    elif is_dataclass(owner) or type(owner).__module__.startswith("lantern"):
        parts = vars(owner).items()
    else:
        return {}
    found = {}
    for name, part in parts:
        found |= reachable_tensors(part, f"{path}.{name}")
    return found


def addresses(state) -> dict[str, tuple]:
    found = {path: tensor for path, tensor in reachable_tensors(state).items() if "_images" not in path}
    return {path: (tensor.data_ptr(), tensor.shape, tensor.stride()) for path, tensor in found.items()}


@pytest.fixture
def streams_read(monkeypatch) -> set[Stream]:
    """Return a list of the noise streams that are read during the test."""
    found, read = set(), NoiseField._read

    def spy(self, stream, positions):
        found.add(stream)
        return read(self, stream, positions)

    monkeypatch.setattr(NoiseField, "_read", spy)
    return found


def test_methods_that_follow_a_path(models, monkeypatch):
    """All other methods verify alike whatever MANY_LOGITS is."""
    monkeypatch.setattr(base, "MANY_LOGITS", 0)
    follow, found = Verifier._verify_path, set()
    for name in METHODS:
        monkeypatch.setattr(Verifier, "_verify_path", lambda *args, name=name: found.add(name) or follow(*args))
        decoder = decoder_of(models, name)
        state = start(decoder, *make_batches(decoder, models)[0])
        with torch.inference_mode():
            decoder.step(state)
    assert found == {*FAST_ON_PATH, *ON_PATH}


@pytest.mark.parametrize(("name", "temperature", "many_logits"), CASES)
def test_what_holds_of_every_method(models, name, temperature, many_logits, tapes, streams_read, monkeypatch):
    monkeypatch.setattr(base, "MANY_LOGITS", many_logits)
    decoder = decoder_of(models, name, temperature)
    batches = make_batches(decoder, models)
    expected = [decoder.generate(*batch) for batch in batches]

    # Whole images; the noise that is made is the noise that is read.
    assert all((part.step_lengths.sum(1) == 16).all() for part in expected)
    forwards = torch.cat([part.target_forwards for part in expected])
    assert (forwards == 16).all() == (decoder.spec.drafts is None) and (forwards <= 16).all()
    assert streams_read == set(decoder.noise_streams)

    # Exact by equality: the tokens of autoregressive decoding, though drafts are accepted.
    codes = autoregressive_codes(temperature)
    is_equal = all(torch.equal(found.codes, other) for found, other in zip(expected, codes, strict=True))
    assert is_equal or not decoder.spec.keeps_tokens(temperature)
    if is_equal:
        assert not any(part.is_substituted.any() for part in expected)

    # Steps on two states in turn give what each gives alone. An image depends neither on the batch nor on its place
    # there. Steps move no tensor, and where a GPU runs them, which never follows a path, they read nothing back.
    features, mask, noise = batches[0]
    order = [2, 0]
    shuffled = (features[order], mask[order], [noise[row] for row in order])
    states = [start(decoder, *batch) for batch in (shuffled, batches[1])]
    before = addresses(states[0])
    assert {"state.tokens", "state.cache.entries", "state.cache.layers.0.vectors"} < set(before)
    with torch.inference_mode():
        for number in range(int(forwards.max()) - 1):
            # If two steps read nothing back, no value decides what a step runs, and all steps run the same.
            with NoHostSync() if many_logits and number < 2 else nullcontext():
                for state in states:
                    decoder.step(state)
    assert addresses(states[0]) == before
    for state, part, rows in zip(states, expected, (order, [0, 1, 2]), strict=True):
        found = state.collect(range(len(rows)))
        assert torch.equal(found.codes, part.codes[rows])
        assert torch.equal(found.target_forwards, part.target_forwards[rows])

    # A step that is recorded once, on a state without prompts, generates both batches.
    if not many_logits:
        return
    graphed = captured(decoder)
    for batch, part in zip(batches, expected, strict=True):
        assert_equal(graphed.generate(*batch), part)
    assert len(tapes) == 1 and tapes[0].num_replays >= sum(int(part.target_forwards.max()) - 1 for part in expected)


@pytest.fixture(scope="module")
def lined() -> DecodingModels:
    """Return models with 11 codes, and images of four lines with four codes and a line end."""
    return make_models(line_end=7)


@pytest.mark.parametrize(
    ("name", "temperature", "many_logits"),
    [row for row in CASES if row.values[0] != "lantern_official"],  # may sample from all codes
)
def test_every_method_ends_every_line(lined, name, temperature, many_logits, monkeypatch):
    """The line-end token occurs at line ends and nowhere else; a step may go beyond one."""
    monkeypatch.setattr(base, "MANY_LOGITS", many_logits)
    decoder = decoder_of(lined, name, temperature)
    batch = make_batches(decoder, lined)[0]
    generation = decoder.generate(*batch)
    lines = generation.codes.view(3, 4, 5)
    assert (lines[..., 4] == 11).all() and (lines[..., :4] < 11).all()
    assert not generation.is_substituted.view(3, 4, 5)[..., 4].any()
    assert (generation.step_lengths.sum(1) == 20).all()
    if decoder.spec.keeps_tokens(temperature):
        assert torch.equal(generation.codes, autoregressive_codes(temperature, line_end=7)[0])


def test_what_ends_a_line_is_drafted_where_it_stands(lined):
    """Jacobi and SJD draft line ends before the target has sampled them, and accept them from the first step."""
    for name in ("jacobi", "sjd"):
        decoder, seen = decoder_of(lined, name), []
        decoder.observer = lambda outcome, seen=seen: seen.append(outcome.proposal.tokens[:, 1:])
        batch = make_batches(decoder, lined)[0]
        state = start(decoder, *batch)
        decoder.run(state, 3)
        first = seen[0]  # of places 1, 2, 3, 4 (the end of the line), ...
        depths = decoder.drafter.tree.depths[0, 1:]
        at_end = first[:, (depths == 4) & (decoder.drafter.tree.ranks[0, 1:] == 0)]
        assert (at_end == 11).all() and (first[:, depths == 3] != 11).all()


def test_images_do_not_depend_on_the_order_of_methods(models):
    """They do not depend on noise that another method has read, either."""
    features, mask = make_prompts(models, 2)

    def draw(names: tuple[str, ...]) -> dict[str, torch.Tensor]:
        decoders = {
            name: make_decoder(with_heads(models, spec_of(name)), spec_of(name), SamplingConfig()) for name in names
        }
        streams = {stream for decoder in decoders.values() for stream in decoder.noise_streams}
        noise = [ImageNoise(7, i, [*streams], 16, 12) for i in "ab"]
        return {name: decoder.generate(features, mask, noise).codes for name, decoder in decoders.items()}

    forth, back = draw(KINDS), draw(KINDS[::-1])
    assert all(torch.equal(forth[name], back[name]) for name in KINDS)


class OnDevice(TorchDispatchMode):
    """Mode that raises if an operation uses tensors of another device.

    The tensors are fake and have no values to read.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, kwargs, result)):
            assert not isinstance(tensor, torch.Tensor) or tensor.device.type == "cuda", f"{func} on {tensor.device}"
        return result


@pytest.mark.parametrize(("name", "temperature"), [case(*row) for row in SETTINGS])
def test_a_step_stays_on_its_gpu(name, temperature):
    """Fake tensors have a device and a shape, but no values that a step could read."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    decoder, state = fill_on_fake_gpu(name, fake, temperature)
    with fake, torch.inference_mode(), OnDevice():
        decoder.step(state)
    assert all(isinstance(tensor, FakeTensor) for tensor in reachable_tensors(state).values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "temperature"),
    [*((name, 1.0) for name in COMPILED), *((name, 0.0) for name in ("jacobi", "lantern", "proximity"))],
)
def test_a_step_is_one_graph_of_torch_compile(models, name, temperature, top_k_of_torch, monkeypatch):
    """The graph has no break. Drafts are verified as on a GPU.

    A value that is read back breaks a graph. `test_a_step_stays_on_its_gpu` notices it for every method, also at
    temperature 0.
    """
    monkeypatch.setattr(base, "MANY_LOGITS", 2**30)
    torch.compiler.reset()
    decoder = decoder_of(models, name, temperature)
    batch = make_batches(decoder, models)[0]
    expected, found = start(decoder, *batch), start(decoder, *batch)
    step = torch.compile(decoder.step, fullgraph=True, backend="eager")
    with torch.inference_mode():
        for _ in range(2):
            decoder.step(expected)
            step(found)
    assert torch.equal(found.tokens, expected.tokens)
    assert torch.equal(found.step_log, expected.step_log)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("name", "temperature"), [*((name, 1.0) for name in KINDS), ("lantern_pp", 0.0)])
def test_captured_steps_draw_the_same_images(name, temperature):
    """The models are prepared as on a GPU, so that their layers are those that a GPU runs."""
    models = make_models(is_prepared=False)
    models = DecodingModels(
        models.target.cuda().prepare_for_decoding(),
        models.draft.cuda().prepare_for_decoding(),
        models.nearest_codes.cuda(),
        {"heads": models.parts["heads"].cuda().prepare_for_decoding()},
    )
    decoder = decoder_of(models, name, temperature)
    assert decoder.runner.mode == "graph"
    for batch in make_batches(decoder, models):
        assert_equal(decoder.generate(*batch), decoder.stepped("eager").generate(*batch))
    assert decoder.runner.mode == "graph"
