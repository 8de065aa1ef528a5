"""Tests of prepared linear maps: products do not depend on the kernel, and the size determines the kernel."""

from __future__ import annotations

import copy
import pickle
import weakref

import pytest
import torch
from torch import nn

from helpers.tiny_models import generate, make_models
from lantern.methods import make_method
from lantern.models import linear
from lantern.models.linear import HUGE, LARGE, MANY, PreparedLinear
from lantern.models.transformer import DecodingLayer


@pytest.fixture
def on_amd(monkeypatch):
    """Use packed weights on every CPU."""
    monkeypatch.setattr(linear, "is_amd", lambda: True)
    monkeypatch.setattr(linear, "has_avx512", lambda: True)
    assert linear.can_pack()


def make_linear(inputs: int, outputs: int, bias: bool = False) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs, bias)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("num_rows", "is_packed"), [(1, True), (2, False), (20, True), (200, True)])
def test_products_are_those_of_the_linear_map(monkeypatch, on_amd, num_rows, bias, is_packed):
    """Compared with float64, within the rounding of 96 additions. A missing bias would exceed this by far."""
    monkeypatch.setattr(linear, "LARGE", 1 if is_packed else 10**6)
    plain = make_linear(96, 160, bias)
    prepared, x = PreparedLinear(plain), torch.randn(num_rows, 96)
    assert prepared.is_packed(num_rows) == (is_packed and num_rows >= MANY)
    expected = nn.functional.linear(x.double(), plain.weight.double()).detach()
    close = {"rtol": 0, "atol": 96 * 2.0**-24 * float((x.abs() @ plain.weight.detach().abs().t()).max())}
    product, add_product_ = prepared.kernels(num_rows)
    torch.testing.assert_close(product(x).double(), expected, **close)
    total = torch.ones(num_rows, 160)
    add_product_(total, x)
    torch.testing.assert_close(total.double(), 1 + expected, rtol=2.0**-22, atol=close["atol"])
    expected = expected + plain.bias.detach() if bias else expected
    torch.testing.assert_close(
        prepared(x.view(num_rows, 1, 96))[:, 0].double(), expected, rtol=2.0**-22, atol=close["atol"]
    )


def test_the_kernel_follows_from_the_size_of_the_weight_and_the_number_of_rows(on_amd):
    small, large, huge = (PreparedLinear(make_linear(1000, size // 1000)) for size in (LARGE - 1000, LARGE, HUGE))
    assert small.packed is None and not small.is_packed(10**6)
    assert not large.is_packed(MANY - 1) and large.is_packed(MANY) and large.columns is not None
    assert huge.is_packed(1) and huge.columns is None  # stored once


@pytest.mark.parametrize("size", [LARGE, HUGE])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda part: pickle.loads(pickle.dumps(part))])
def test_packed_weights_are_copied_and_pickled(on_amd, size, copied):
    prepared, x = PreparedLinear(make_linear(1000, size // 1000, bias=True)), torch.randn(MANY, 1000)
    assert torch.equal(copied(prepared)(x), prepared(x))


@pytest.mark.parametrize("lacking", ["is_amd", "has_avx512"])
def test_on_other_cpus_nothing_is_packed(on_amd, monkeypatch, lacking):
    monkeypatch.setattr(linear, lacking, lambda: False)
    prepared = PreparedLinear(make_linear(1000, HUGE // 1000))
    assert not prepared.is_packed(10**6) and prepared.columns.shape == (1000, HUGE // 1000)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_keep_torchs_product_on_the_weights_as_they_are(dtype):
    plain = make_linear(1000, HUGE // 1000).to(dtype)
    prepared, x = PreparedLinear(plain), torch.randn(3, 1000, dtype=dtype)
    assert not prepared.is_packed(10**6)
    assert prepared.columns.data_ptr() == plain.weight.data_ptr()
    assert torch.equal(prepared(x), plain(x))


@pytest.mark.parametrize("name", ["autoregressive", "jacobi", "eagle2", "lantern"])
def test_a_model_draws_the_same_tokens_with_packed_weights_and_without(monkeypatch, on_amd, name):
    """All products are packed, or none. They round differently, but no token of these images changes."""
    spec = make_method(name, **({"k": 3, "delta": 0.1} if name == "lantern" else {}))
    monkeypatch.setattr(linear, "LARGE", 1)
    monkeypatch.setattr(linear, "HUGE", 1)
    packed = make_models(seed=3)
    found = generate(packed, spec)
    monkeypatch.setattr(linear, "can_pack", lambda: False)
    plain = make_models(seed=3)
    assert packed.target.head.is_packed(1) and not plain.target.head.is_packed(1)
    assert torch.equal(found.codes, generate(plain, spec).codes)


def test_a_models_weights_are_freed_one_by_one_while_it_is_prepared(monkeypatch):
    """If they were freed at the end, a large model would be in memory twice."""
    model = nn.Sequential(*(make_linear(8, 8) for _ in range(5)))
    plain, alive = [weakref.ref(part) for part in model], []
    prepare = linear.PreparedLinear

    def count(part):
        alive.append(sum(reference() is not None for reference in plain))
        return prepare(part)

    monkeypatch.setattr(linear, "PreparedLinear", count)
    linear.prepare_linears(model)
    assert alive == [5, 4, 3, 2, 1] and not any(reference() for reference in plain)


def test_a_layer_that_is_not_prepared_runs_on_its_own_weights(on_amd, monkeypatch):
    """The decoding layers of such a model are made in every pass, so copies would cost more than the pass."""
    monkeypatch.setattr(linear, "LARGE", 1)
    layer = make_models(is_prepared=False).target.layers[0]
    parts = (layer.qkv, layer.attention_out, layer.gate_up, layer.down)
    for prepared, part in zip(DecodingLayer(layer).linears, parts, strict=True):
        assert prepared.packed is None and prepared.columns.data_ptr() == part.weight.data_ptr()
