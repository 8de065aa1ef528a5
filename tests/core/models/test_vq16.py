"""Tests of VQ-16 against numbers of the public code (tests/data/vq), with weights made by a recipe."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from helpers.families import chameleon_name, draw_of_tokenizer, janus_name
from helpers.paths import DATA
from lantern.models.stored import load_weights
from lantern_models.checkpoints.image_tokenizers import make_image_tokenizer
from lantern_models.checkpoints.tensor_names import vq16_names
from lantern_models.checkpoints.weight_files import read_weights
from lantern_models.images.vq16 import VQ16, VQ16Config

FOLDER = DATA / "vq"
CHAMELEON = {
    "chameleon_small": (VQ16Config(6, 64, 16, 32, (1, 2), 1, 16, has_attention=False, is_normalised=False), 1234),
    "chameleon_fullsize": (VQ16Config(3, 8192, 256, has_attention=False, is_normalised=False), 4321),
}
SETS = ["vq_small", "vq_ds16_ch32", "chameleon_small"]
SETS += [pytest.param(name, marks=pytest.mark.slow) for name in ("vq16_fullsize", "chameleon_fullsize")]


def recipe_config(name: str) -> tuple[VQ16Config, int]:
    """Return (sizes, seed) of a stored test set."""
    if name in CHAMELEON:
        return CHAMELEON[name]
    stored = json.loads((FOLDER / f"{name}_config.json").read_text())
    sizes = [stored[key] for key in ("grid", "codebook_size", "codebook_embed_dim", "ch", "ch_mult")]
    return VQ16Config(*sizes, stored["num_res_blocks"], stored["z_channels"]), stored["seed"]


def recipe_state(name: str) -> dict[str, torch.Tensor]:
    """Return the weights of a test set under their published names; those of vq_small were stored in float16."""
    config, seed = recipe_config(name)
    with torch.device("meta"):
        shapes = {key: tuple(tensor.shape) for key, tensor in VQ16(config).state_dict().items()}
    if name in CHAMELEON:
        shapes = {chameleon_name(key, len(config.channel_multipliers) - 1): shape for key, shape in shapes.items()}
    state = {key: draw_of_tokenizer(key, shape, seed) for key, shape in shapes.items()}
    return {key: value.half().float() for key, value in state.items()} if name == "vq_small" else state


def make_vq16(name: str) -> VQ16:
    state = recipe_state(name)
    state = vq16_names(state) if name in CHAMELEON else state
    return load_weights(VQ16(recipe_config(name)[0]), state, FOLDER / name)


@pytest.fixture(scope="module")
def small() -> VQ16:
    return make_vq16("vq_small")


@pytest.mark.parametrize("name", SETS)
def test_encode_and_decode_as_the_public_code(name):
    """The public code does not clamp pixels. Codes are compared unless another code is almost equally near."""
    model, stored = make_vq16(name), load_file(FOLDER / f"{name}_io.safetensors")
    codes, images = stored["codes"].long(), len(stored["decoded"])
    close = {"atol": 1e-4 if name in CHAMELEON else 2e-4, "rtol": 0}
    torch.testing.assert_close(model.decode(codes)[:images], stored["decoded"].clamp(-1, 1), **close)
    with torch.no_grad():
        rows = model.codebook if name in CHAMELEON else F.normalize(model.codebook, dim=-1)
        assert torch.equal(model.decoded_codebook, rows)
        torch.testing.assert_close(model.reconstruct(rows[codes])[:images], stored["decoded"], **close)
        latents = model.latents(stored["image"])
    torch.testing.assert_close(latents, stored["encoder_prequant"].flatten(2).transpose(1, 2), **close)
    found = model.encode(stored["image"])
    expected, margin = stored["encoder_codes"].long().view(found.shape), stored["nn_margin"].view(found.shape)
    is_clear = margin > (1e-3 if name in CHAMELEON else 2e-4)
    assert is_clear.all() or (is_clear.any() and name in CHAMELEON)
    assert torch.equal(found[is_clear], expected[is_clear])
    step = 1 if name in CHAMELEON else 2
    again = model.decode(expected)[:, :, ::step, ::step]
    torch.testing.assert_close(again, stored["decoded_from_encoder"].clamp(-1, 1), **close)


def test_full_sizes_have_the_published_tensors():
    """VQ-16 has 344 tensors (one counts used codes in training) and 71,883,403 parameters; Chameleon's has 293."""
    published = {
        name: {key: tuple(shape) for key, shape in json.loads((FOLDER / f"keys_{name}.json").read_text()).items()}
        for name in ("vq_ds16", "chameleon_vqgan")
    }
    assert published["vq_ds16"].pop("quantize.codebook_used") == (65536,)
    for name, config, number, size in (
        ("vq_ds16", VQ16Config(), 343, 71_883_403),
        ("chameleon_vqgan", CHAMELEON["chameleon_fullsize"][0], 293, 68_718_467),
    ):
        with torch.device("meta"):
            found = {key: tuple(tensor.shape) for key, tensor in VQ16(config).state_dict().items()}
        if name == "chameleon_vqgan":
            found = {chameleon_name(key, 4): shape for key, shape in found.items()}
        assert found == published[name]
        assert len(found) == number and sum(int(np.prod(shape)) for shape in found.values()) == size


def test_tokenizers_among_other_weights(tmp_path):
    """Chameleon's file also has the weights of its training losses; Janus' file has a VQ-16 among others."""
    state = recipe_state("chameleon_small") | {"loss.discriminator.weight": torch.zeros(1)}
    torch.save({"state_dict": state}, tmp_path / "vqgan.ckpt")
    state = {janus_name(name): value for name, value in recipe_state("vq_small").items()}
    torch.save(state | {"model.generation_embeddings.weight": torch.zeros(1)}, tmp_path / "pytorch_model.bin")
    for file, name in (("vqgan.ckpt", "chameleon_small"), ("pytorch_model.bin", "vq_small")):
        expected = make_vq16(name)
        model = make_image_tokenizer(read_weights(tmp_path / file), expected.config.image_size)
        assert model.config == expected.config and not model.training
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters(), strict=True))


def test_decoding_normalises_the_codebook(small):
    """Codebook rows of other lengths decode to the same images."""
    codes, longer = torch.arange(16)[None], make_vq16("vq_small")
    with torch.no_grad():
        longer.codebook.mul_(torch.linspace(0.5, 2.0, len(longer.codebook))[:, None])
    torch.testing.assert_close(longer.decode(codes), small.decode(codes), atol=1e-5, rtol=0)
    assert not torch.allclose(small.codebook.norm(dim=-1), torch.ones(64))


def test_images_and_codes_in_several_chunks_or_none_are_the_same(small, monkeypatch):
    images = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    codes = small.encode(images)
    decoded = small.decode(codes)
    monkeypatch.setattr("lantern_models.images.vq16._PIXELS", 1)
    assert torch.equal(small.encode(images), codes)
    torch.testing.assert_close(small.decode(codes), decoded, atol=1e-5, rtol=0)
    assert small.encode(images[:0]).shape == (0, 16)
    assert small.decode(codes[:0]).shape == (0, 3, 8, 8)


def test_a_tall_image_has_its_codes_line_by_line(small):
    config = replace(small.config, grid=[6, 4])
    assert (config.grid, config.shape, config.image_size) == ((6, 4), (6, 4), (12, 8))
    assert replace(small.config, grid=[4, 4]) == small.config
    tall = VQ16(config).eval()
    tall.load_state_dict(small.state_dict())
    codes = torch.arange(24)[None]
    assert torch.equal(tall.decode(codes), small.decode(codes.view(1, 6, 4)))
    assert tall.encode(tall.decode(codes)).shape == (1, 24)
    with pytest.raises(ValueError, match=r"images must have shape \(n, 3, 12, 8\), got \(1, 3, 8, 12\)"):
        tall.encode(torch.zeros(1, 3, 8, 12))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda model: model.encode(torch.zeros(1, 3, 16, 8)), r"images must have shape \(n, 3, 8, 8\)"),
        (lambda model: model.decode(torch.zeros(1, 15)), r"codes must have shape \(n, 16\), got \(1, 15\)"),
        (lambda model: model.decode(torch.full((1, 16), 64)), r"codes must be in \[0, 64\), got 64 to 64"),
        (lambda model: model.decode(-torch.ones(1, 16)), r"codes must be in \[0, 64\), got -1 to -1"),
        (lambda model: VQ16Config(channels=40), "channels of a VQ-16 must be a multiple of 32, got 40"),
    ],
)
def test_wrong_shapes_are_named(small, call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call(small)


def test_an_image_of_one_code_has_the_pixels_that_it_has_in_a_batch():
    torch.manual_seed(0)
    model = VQ16(VQ16Config(1, 8, 4, 32, (1, 1), 1, 32)).eval()
    codes = torch.arange(2).view(2, 1)
    one, both = model.decode(codes[:1]), model.decode(codes)
    torch.testing.assert_close(one, both[:1], atol=1e-4, rtol=0)  # kernels depend on the batch
    assert torch.equal(model.encode(one), model.encode(both)[:1])


def test_two_tensors_of_one_name_are_refused():
    names = ("encoder.mid.attn_1.q.weight", "encoder.mid.1.q.weight")
    with pytest.raises(ValueError, match=r"encoder\.mid\.attn_1\.q\.weight and .* are both encoder\.mid\.1\.q\.weight"):
        vq16_names(dict.fromkeys(names, torch.ones(1)))
