"""Decoders of every preset and variant, on tiny models.

The variants, presets with other parts, are in `benchmarks/every_method.py`.
"""

from __future__ import annotations

from dataclasses import fields

import torch
from every_method import spec_of, with_heads
from kernels import to_fake
from torch._subclasses.fake_tensor import FakeTensorMode

from helpers.tiny_models import make_models, make_prompts
from lantern.decoding import Decoder, make_decoder
from lantern.models.draft import DraftModel
from lantern.models.target import TargetModel
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels, DecodingState, Generation
from lantern_methods.shift_heads import ShiftHeads


def decoder_of(models: DecodingModels, name: str, temperature: float = 1.0, **options) -> Decoder:
    """Return a decoder with guidance and top-k.

    Args:
        models: the models.
        name: a preset or a variant.
        temperature: sampling temperature.
        options: options of `make_decoder`.
    """
    return make_decoder(
        with_heads(models, spec_of(name)), spec_of(name), SamplingConfig(temperature, top_k=8, cfg_scale=2.0), **options
    )


def make_batches(decoder: Decoder, models: DecodingModels) -> list[tuple]:
    """Return two batches of three prompts, each as (features, mask, noise), for `Decoder.generate`."""
    features, mask = make_prompts(models, 6)
    noise = [decoder.make_noise(7, f"prompt-{i}") for i in range(6)]
    return [(features[part], mask[part], noise[part]) for part in (slice(0, 3), slice(3, 6))]


def fill_on_fake_gpu(name: str, fake: FakeTensorMode, temperature: float = 1.0) -> tuple[Decoder, DecodingState]:
    """Return a method's decoder and its state after the prefill, on fake CUDA tensors, which have no values."""
    models = make_models()
    models = DecodingModels(
        TargetModel(models.target.config),
        DraftModel(models.draft.config),
        models.nearest_codes,
        {"heads": ShiftHeads(models.parts["heads"].config)},
    )
    decoder = decoder_of(models, name, temperature)
    batch = list(make_batches(decoder, models)[0])
    with fake, torch.inference_mode():
        to_fake(decoder, fake, "cuda")
        to_fake(batch, fake, "cpu")
        for model in (models.target, models.draft, models.parts["heads"]):
            model.prepare_for_decoding()
        state = decoder.allocate(3)
        decoder.fill(state, range(3), *batch)
    return decoder, state


def assert_equal(found: Generation, expected: Generation) -> None:
    """Assert that two results are equal in every field."""
    for field in fields(expected):
        assert torch.equal(getattr(found, field.name), getattr(expected, field.name)), field.name
