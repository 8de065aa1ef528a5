"""Tests of the shipped model on a GPU: against a CPU in float32, and against itself in bfloat16.

In bfloat16, a product of 2 rows rounds differently from one of 20. Exact methods are therefore compared with
autoregressive steps that have the same number of rows. This also holds on a CPU, where these tests run, too.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from every_method import METHODS, spec_of
from gpu_parts.common import load_embedded, models_for
from gpu_parts.equality import CAPTIONS
from gpu_parts.exactness import padded_decoder

import lantern
from lantern.decoding import Decoder, make_decoder
from lantern.methods import make_method
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels, Generation
from lantern_pipeline.measure.exactness.losslessness import compare_with_autoregressive

NEEDS_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
DEVICES = [CPU, pytest.param(CUDA, marks=NEEDS_GPU)]


@cache
def load(device: torch.device, dtype: torch.dtype, is_prepared: bool = True) -> DecodingModels:
    return load_embedded(device, dtype, is_prepared=is_prepared)


def sampling_of(temperature: float) -> SamplingConfig:
    return SamplingConfig(temperature, 100, 1.0, "top_k_first", 3.0)


def generate(decoder: Decoder, num_images: int) -> Generation:
    """Generate images of the captions in order, each with its own noise."""
    texts = [CAPTIONS[index % len(CAPTIONS)] for index in range(num_images)]
    captions = lantern.load("embedded").encoder.encode(texts)
    return decoder.generate(*captions, [decoder.make_noise(0, str(index)) for index in range(num_images)])


def assert_same_images(found: Generation, expected: Generation) -> None:
    """Assert equal codes, or a first difference at a near-tie of the target's two best codes."""
    equality = compare_with_autoregressive(found.codes.cpu(), expected.codes, expected.margins)
    assert (equality.is_equal | equality.is_near_tie).all(), equality.margin_at_difference


def test_the_layer_that_a_gpu_runs_gives_the_images_of_a_cpus():
    """A GPU layer folds norms into matrices and stores matrices differently. On a GPU all methods are compared."""
    spec = spec_of("coupled")
    folded, plain = (
        make_decoder(models_for(models, spec), spec, sampling_of(1.0), records_margins=True)
        for models in (load(CPU, torch.float32), load(CPU, torch.float32, False))
    )
    assert folded.target.decoding_layers and not plain.target.decoding_layers
    assert_same_images(generate(plain, 1), generate(folded, 1))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("name", "temperature"), [(name, 1.0) for name in METHODS] + [("eagle2", 0.0)])
def test_cpu_eager_steps_and_graph_give_the_same_images(name, temperature):
    spec = spec_of(name)
    on_cpu, on_gpu = (
        make_decoder(
            models_for(load(device, torch.float32), spec), spec, sampling_of(temperature), records_margins=True
        )
        for device in (CPU, CUDA)
    )
    eager, graph = generate(on_gpu.stepped("eager"), 4), generate(on_gpu, 4)
    assert on_gpu.runner.mode == "graph"
    for field in ("codes", "accepted_lengths", "accepted_nodes", "is_substituted"):
        assert torch.equal(getattr(graph, field), getattr(eager, field)), field
    expected = generate(on_cpu, 4)
    if spec.keeps_tokens(temperature):
        assert_same_images(eager, expected)
    else:  # a draft may be accepted on one device and not on the other, if its test is almost tied
        assert (eager.codes.cpu() == expected.codes).all(1).sum() >= 3


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize("tree", ["chain9", pytest.param("chain15", marks=pytest.mark.slow)])
def test_in_bfloat16_jacobi_decoding_equals_autoregressive_steps_of_as_many_rows(tree, device):
    models, spec = load(device, torch.bfloat16), make_method("jacobi", tree=tree)
    num_images = 4 if device.type == "cuda" else 2  # bfloat16 is slow on a CPU
    images = generate(make_decoder(models, spec, sampling_of(1.0)), num_images)
    padded = generate(padded_decoder(models, spec, sampling_of(1.0)), num_images)
    assert (padded.target_forwards == padded.codes.shape[1]).all()  # a token a step: nothing was drafted
    assert (images.target_forwards < 0.6 * images.codes.shape[1]).all()
    assert torch.equal(images.codes, padded.codes)
