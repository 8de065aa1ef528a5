"""Tests of Triton kernels: they give the results of PyTorch's operations, and a step on a GPU calls them."""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from kernels import SAMPLING, XL, count_kernels, random_models
from torch._subclasses.fake_tensor import FakeTensorMode

from helpers.every_method import fill_on_fake_gpu
from lantern import fused
from lantern.methods import make_method

CPU = torch.device("cpu")


@pytest.fixture
def interpreted(monkeypatch):
    """Run the kernels in Triton's interpreter on the CPU."""
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    spec = importlib.util.find_spec("lantern.triton_kernels")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_kernels_pass_their_check(interpreted):
    fused.check(interpreted, CPU)


@pytest.mark.parametrize("name", ["rotate_and_write", "silu_times", "noise"])
def test_a_kernel_that_writes_nothing_fails_the_check(interpreted, monkeypatch, name):
    class Nothing:
        def __getitem__(self, grid: tuple) -> object:
            return lambda *arguments, **options: None

    monkeypatch.setattr(interpreted, f"_{name}", Nothing())
    monkeypatch.setattr(torch.Tensor, "new_empty", torch.Tensor.new_zeros)
    monkeypatch.setattr(torch, "empty", torch.zeros)
    with pytest.raises(AssertionError):
        fused.check(interpreted, CPU)


@pytest.mark.parametrize("capability", [pytest.param(80, marks=pytest.mark.slow), 90])
def test_kernels_compile_for_gpus(capability):
    """They compile for A100 and H100 without a GPU, in the dtypes of the model."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from lantern import triton_kernels

    integers = dict.fromkeys(("num_rotary", "num_queries", "num_turned", "num_heads"), "i32")
    layer = {"qkv": "*bf16", "rotary": "*fp32", "vectors": "*bf16", "flat_slots": "*i64", **integers}
    noise = {"key": "*i64", "noise": "*fp32", "first": "i64", "num_values": "i32"}
    for function, types, constants in (
        (triton_kernels._rotate_and_write, layer, {"half": 32, "block": 32}),
        (triton_kernels._silu_times, {"gate_up": "*bf16", "product": "*bf16", "width": "i32"}, {"block": 1024}),
        (triton_kernels._noise, noise, {"is_gumbel": True, "block": 256}),
    ):
        source = ASTSource(function, types | dict.fromkeys(constants, "constexpr"), constants)
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
        assert f".target sm_{capability}" in compiled.asm["ptx"] and compiled.asm["cubin"]


def test_they_are_used_on_a_gpu_that_passes_the_check(monkeypatch, caplog):
    assert not fused.is_usable(CPU)
    monkeypatch.setattr(fused, "_is_equal", {})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: torch.zeros(0))
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    cards, calls = [torch.device("cuda", index) for index in range(2)], []

    def check(kernels: object, device: torch.device) -> None:
        calls.append(device)
        if device != cards[0]:
            raise AssertionError("found other values")

    monkeypatch.setattr(fused, "check", check)
    monkeypatch.setattr(fused, "_kernels", SimpleNamespace)
    assert [fused.is_usable(device) for device in cards * 2] == [True, False, True, False]
    assert calls == cards
    assert caplog.messages == ["fused kernels are not used on cuda:1: AssertionError: found other values"]
    monkeypatch.setenv("LANTERN_FUSED", "0")
    assert not fused.is_usable(cards[0])


@pytest.mark.slow
def test_a_step_of_the_largest_published_size_launches_few_kernels(monkeypatch):
    """One token of LlamaGen XL with guidance at batch 1. Before fusion it took 731 kernels."""
    make = partial(random_models, XL, torch.bfloat16)
    spec = make_method("autoregressive")
    plain = count_kernels(make, spec, SAMPLING)
    monkeypatch.setattr(fused, "is_usable", lambda device: device.type == "cuda")
    found = count_kernels(make, spec, SAMPLING)
    assert found["rotate_and_write"] == found["silu_times"] == XL.num_layers
    assert found.total() == plain.total() - 4 * XL.num_layers <= 370


@pytest.mark.parametrize("name", ["eagle1", pytest.param("zipar", marks=pytest.mark.slow)])
def test_kernels_of_a_layer_get_contiguous_tensors(monkeypatch, name):
    """They compute addresses from shapes alone. Prefills and steps run on fake CUDA tensors."""
    num_calls = 0

    def check(*tensors: torch.Tensor) -> None:
        nonlocal num_calls
        assert all(tensor.is_contiguous() and tensor.device.type == "cuda" for tensor in tensors)
        num_calls += 1

    for function in ("rotate_and_write", "silu_times"):
        run = getattr(fused, function)
        monkeypatch.setattr(fused, function, lambda *tensors, run=run: (check(*tensors), run(*tensors))[1])
    monkeypatch.setattr(fused, "is_usable", lambda device: device.type == "cuda")
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    decoder, state = fill_on_fake_gpu(name, fake)
    num_of_prefills = num_calls
    with fake, torch.inference_mode():
        decoder.step(state)
    assert num_calls > num_of_prefills > 0
