"""Tiny random models on which every method runs in milliseconds, and functions that generate images with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace

import torch

from lantern.acceptance.base import Verifier
from lantern.codebook import nearest_codes
from lantern.decoding import Decoder, make_decoder, make_verifier
from lantern.methods import MethodSpec
from lantern.models.draft import DraftConfig, DraftModel
from lantern.models.target import TargetConfig, TargetModel
from lantern.noise import ImageNoise
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels, DecodingState, Generation
from lantern.step import Outcome
from lantern_methods.shift_heads import ShiftHeads


def make_models(
    vocab_size: int = 12,
    grid: int = 4,
    seed: int = 0,
    scale: float = 6.0,
    line_end: int | None = None,
    is_prepared: bool = True,
    **sizes: int,
) -> DecodingModels:
    """Return a random target, a random draft model, random shift heads, and the nearest codes of a random codebook.

    Weights are scaled up, so that distributions are far from uniform. The vocabulary is small, so that some drafts of
    the random draft model are accepted.

    Args:
        vocab_size: number of tokens.
        grid: number of lines, and of codes per line.
        seed: random seed.
        scale: factor of all matrices.
        line_end: id of the token that ends lines of codes, the last of the vocabulary. None for no such token.
        is_prepared: whether the models are prepared for decoding.
        sizes: further fields of the target's config.
    """
    torch.manual_seed(seed)
    config = TargetConfig(
        dim=32,
        num_layers=2,
        num_heads=2,
        vocab_size=vocab_size,
        grid=grid,
        num_text_tokens=5,
        caption_dim=16,
        ffn_multiple=16,
        line_end=line_end,
        **sizes,
    )
    target = TargetModel(config).eval()
    draft = DraftModel(DraftConfig.of(config)).eval()
    with torch.no_grad():
        for parameter in [*target.parameters(), *draft.parameters()]:
            if parameter.dim() == 2:
                parameter.mul_(scale)
        draft.token_embedding.weight.copy_(target.token_embedding.weight)
        draft.from_hidden.weight.copy_(torch.eye(config.dim))
    heads = make_heads(target)
    table = nearest_codes(torch.randn(config.num_codes, 4), k=config.num_codes - 1)
    if is_prepared:
        target.prepare_for_decoding()
        draft.prepare_for_decoding()
        heads.prepare_for_decoding()
    return DecodingModels(target, draft, table, {"heads": heads})


def verifier_from(
    spec: MethodSpec,
    sampling: SamplingConfig,
    table: torch.Tensor | None = None,
    embedding: torch.Tensor | None = None,
) -> Verifier:
    """Return the verifier of a method from a table of nearest codes and the target's code embeddings alone."""
    target = SimpleNamespace(token_embedding=SimpleNamespace(weight=embedding), device="cpu")
    return make_verifier(DecodingModels(target, nearest_codes=table), spec, sampling)


def make_heads(target: TargetModel, num_right: int = 2) -> ShiftHeads:
    """Return random shift heads of a target."""
    heads = ShiftHeads.from_target(target, num_right, seed=0).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in heads.parameters():
            if parameter.dim() == 2:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return heads


def make_prompts(models: DecodingModels, batch: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random caption features of various lengths.

    Returns:
        (features, left-padded, (batch, num_text_tokens, caption_dim); mask, bool (batch, num_text_tokens)).
    """
    config = models.target.config
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(batch, config.num_text_tokens, config.caption_dim, generator=generator)
    lengths = torch.arange(batch) % config.num_text_tokens + 1
    mask = torch.arange(config.num_text_tokens) >= config.num_text_tokens - lengths[:, None]
    return features * mask[..., None], mask


def generate(
    models: DecodingModels, spec: MethodSpec, rows: Iterable[int] = range(5), observer=None, **sampling
) -> Generation:
    """Generate images.

    Args:
        models: the models.
        spec: the method.
        rows: numbers of the images. Image i has prompt i % 5 and the noise of the id "prompt-i".
        observer: see `Decoder.observer`.
        sampling: fields of `SamplingConfig`. `cfg_scale` is 2 by default.
    """
    decoder = make_decoder(models, spec, SamplingConfig(**{"cfg_scale": 2.0, **sampling}))
    decoder.observer = observer
    features, mask = make_prompts(models, 5)
    prompts = [row % 5 for row in rows]
    noise = [decoder.make_noise(7, f"prompt-{row}") for row in rows]
    return decoder.generate(features[prompts], mask[prompts], noise)


def start(decoder: Decoder, features: torch.Tensor, mask: torch.Tensor, fields: Sequence[ImageNoise]) -> DecodingState:
    """Return the decoding state of a batch of prompts, with image token 0 emitted.

    Args:
        decoder: the decoder.
        features, mask: the prompts, from `make_prompts`.
        fields: noise of each image.
    """
    state = decoder.allocate(len(fields))
    decoder.fill(state, range(len(fields)), features, mask, fields)
    return state


def first_steps(models: DecodingModels, spec: MethodSpec, num_steps: int, **sampling) -> list[Outcome]:
    """Return the outcome of the first steps of two images."""
    decoder, seen = make_decoder(models, spec, SamplingConfig(cfg_scale=2.0, **sampling)), []
    decoder.observer = seen.append
    with torch.inference_mode():
        state = start(decoder, *make_prompts(models, 2), [decoder.make_noise(7, i) for i in "ab"])
        for _ in range(num_steps):
            decoder.step(state)
    return seen
