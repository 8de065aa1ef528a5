"""VQ-16: numbers of the public code (tests/data/vq) reproduced, on weights made by a recipe instead of stored."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from conftest import DATA
from families import chameleon_name
from lantern.checkpoints.names import chameleon_tokenizer
from lantern.checkpoints.native import load_model, load_weights, save_model
from lantern.codebook import nearest_codes
from lantern.models.vq16 import VQ16, VQ16Config
from lantern_pipeline.world import tokenizer

FOLDER = DATA / "vq"
SETS = ["vq_small", "vq_ds16_ch32", "vq16_fullsize"]
TOLERANCE = 2e-4


def recipe_tensor(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Weight of a state-dict key, the same on every machine: keyed normal noise, scaled by what the key is."""
    state = np.random.RandomState((zlib.crc32(name.encode()) ^ (seed * 2654435761)) & 0xFFFFFFFF)
    noise = state.standard_normal(shape)
    if len(shape) == 1:
        values = 1 + 0.1 * noise if "norm" in name and name.endswith("weight") else 0.05 * noise
    else:
        values = noise if name == "quantize.embedding.weight" else noise / np.sqrt(np.prod(shape[1:]))
    return torch.from_numpy(values.astype(np.float32))


def recipe_config(name: str) -> tuple[VQ16Config, int]:
    """(sizes, seed) of a stored set."""
    stored = json.loads((FOLDER / f"{name}_config.json").read_text())
    config = VQ16Config(
        grid=stored["grid"],
        codebook_size=stored["codebook_size"],
        code_dim=stored["codebook_embed_dim"],
        channels=stored["ch"],
        channel_multipliers=tuple(stored["ch_mult"]),
        num_blocks=stored["num_res_blocks"],
        latent_channels=stored["z_channels"],
    )
    return config, stored["seed"]


def recipe_state(name: str) -> dict[str, torch.Tensor]:
    """Weights of a stored set under their published names; those of vq_small were kept in float16."""
    config, seed = recipe_config(name)
    with torch.device("meta"):
        shapes = {key: tuple(tensor.shape) for key, tensor in VQ16(config).state_dict().items()}
    state = {key: recipe_tensor(key, shape, seed) for key, shape in shapes.items()}
    return {key: value.half().float() for key, value in state.items()} if name == "vq_small" else state


def make_vq16(name: str) -> VQ16:
    return load_weights(VQ16(recipe_config(name)[0]), recipe_state(name), FOLDER / name)


@pytest.fixture(scope="module")
def small() -> VQ16:
    return make_vq16("vq_small")


@pytest.mark.parametrize("name", SETS)
def test_encode_and_decode_as_the_public_code(name):
    model, stored = make_vq16(name), load_file(FOLDER / f"{name}_io.safetensors")
    decoded = model.decode(stored["codes"].long())
    close = {"atol": TOLERANCE, "rtol": 0}
    # the public code does not clamp
    torch.testing.assert_close(decoded[:1], stored["decoded"].clamp(-1, 1), **close)
    with torch.no_grad():
        rows = F.normalize(model.codebook, dim=-1)
        assert torch.equal(model.decoded_codebook, rows)
        unclamped = model.reconstruct(rows[stored["codes"].long()])
        latents = model.latents(stored["image"])
    torch.testing.assert_close(unclamped[:1], stored["decoded"], **close)
    torch.testing.assert_close(latents, stored["encoder_prequant"].flatten(2).transpose(1, 2), **close)
    codes = model.encode(stored["image"])
    assert float(stored["nn_margin"].min()) > TOLERANCE, "a tie would make the comparison of codes meaningless"
    assert torch.equal(codes, stored["encoder_codes"].long().view(codes.shape))
    again = model.decode(codes)[:, :, ::2, ::2]
    torch.testing.assert_close(again, stored["decoded_from_encoder"].clamp(-1, 1), **close)


def test_full_size_has_the_published_tensors():
    """344 tensors, one of which counts the codes used in training; 71,883,403 parameters."""
    published = {name: tuple(shape) for name, shape in json.loads((FOLDER / "keys_vq_ds16.json").read_text()).items()}
    with torch.device("meta"):
        model = VQ16(VQ16Config())
    mine = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert published.pop("quantize.codebook_used") == (65536,)
    assert mine == published
    assert sum(parameter.numel() for parameter in model.parameters()) == 71_883_403


def test_codebook_is_the_stored_one_and_decoding_normalises_it(small):
    """Rows of other lengths decode to the same images, but have other nearest codes by raw distance."""
    codes = torch.arange(16)[None]
    before = small.decode(codes)
    longer = make_vq16("vq_small")
    with torch.no_grad():
        longer.codebook.mul_(torch.linspace(0.5, 2.0, len(longer.codebook))[:, None])
    torch.testing.assert_close(longer.decode(codes), before, atol=1e-5, rtol=0)
    assert not torch.allclose(small.codebook.norm(dim=-1), torch.ones(64))
    tables = [[nearest_codes(model.codebook, 5, by) for by in ("l2", "l2_normalised")] for model in (small, longer)]
    assert not torch.equal(tables[0][0], tables[1][0])
    assert torch.equal(tables[0][1], tables[1][1])


def test_round_trip_of_a_checkpoint(small, tmp_path):
    """Also through the loader that the rules call, which tells the kinds apart."""
    path = tmp_path / "model.safetensors"
    save_model(path, small, {"checkpoint": "vq_small.pt"})
    codes = torch.arange(16)[None] + 7
    for loaded in (load_model(path, VQ16), tokenizer.load_tokenizer(path)):
        assert loaded.config == small.config
        assert torch.equal(loaded.decode(codes), small.decode(codes))
    own = tokenizer.ImageTokenizer(tokenizer.TokenizerConfig(codebook_size=16))
    save_model(tmp_path / "own.safetensors", own)
    assert isinstance(tokenizer.load_tokenizer(tmp_path / "own.safetensors"), tokenizer.ImageTokenizer)
    with pytest.raises(ValueError, match="should hold a vq16, found image_tokenizer"):
        load_model(tmp_path / "own.safetensors", VQ16)


def test_images_and_codes_in_several_chunks_are_the_same(small, monkeypatch):
    images = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    codes = small.encode(images)
    decoded = small.decode(codes)
    monkeypatch.setattr("lantern.models.vq16._PIXELS", 1)
    assert torch.equal(small.encode(images), codes)
    torch.testing.assert_close(small.decode(codes), decoded, atol=1e-5, rtol=0)


def test_no_images(small):
    assert small.encode(torch.empty(0, 3, 8, 8)).shape == (0, 16)
    assert small.decode(torch.empty(0, 16, dtype=torch.int64)).shape == (0, 3, 8, 8)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda model: model.encode(torch.zeros(1, 3, 16, 8)), r"images must have shape \(n, 3, 8, 8\)"),
        (lambda model: model.decode(torch.zeros(1, 15)), r"codes must have shape \(n, 16\), got \(1, 15\)"),
        (lambda model: model.decode(torch.full((1, 16), 64)), r"codes must be in \[0, 64\), got 64 to 64"),
        (lambda model: VQ16Config(channels=40), "channels of a VQ-16 must be a multiple of 32, got 40"),
    ],
)
def test_wrong_shapes_are_named(small, call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call(small)


CHAMELEON = {
    "small": (VQ16Config(6, 64, 16, 32, (1, 2), 1, 16, has_attention=False, is_normalised=False), 1234),
    "fullsize": (VQ16Config(3, 8192, 256, has_attention=False, is_normalised=False), 4321),
}


def chameleon_shapes(name: str) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        state = VQ16(CHAMELEON[name][0]).state_dict()
    last = len(CHAMELEON[name][0].channel_multipliers) - 1
    return {chameleon_name(key, last): tuple(tensor.shape) for key, tensor in state.items()}


def test_chameleons_tokenizer_has_the_published_tensors():
    published = json.loads((FOLDER / "keys_chameleon_vqgan.json").read_text())
    found = chameleon_shapes("fullsize")
    assert found == {name: tuple(shape) for name, shape in published.items()}
    assert len(found) == 293 and sum(int(np.prod(shape)) for shape in found.values()) == 68_718_467


@pytest.mark.parametrize("name", CHAMELEON)
def test_chameleons_tokenizer_encodes_and_decodes_as_the_public_code(name, tmp_path):
    """The small one from its file, behind the losses that its training keeps beside it."""
    config, seed = CHAMELEON[name]
    state = {key: recipe_tensor(key, shape, seed) for key, shape in chameleon_shapes(name).items()}
    if name == "small":
        torch.save({"state_dict": state | {"loss.discriminator.weight": torch.zeros(1)}}, tmp_path / "vqgan.ckpt")
        model = tokenizer.read_tokenizer(tmp_path / "vqgan.ckpt", image_size=12, grid=6, codebook_size=64, code_dim=16)
        assert model.config == config
    else:
        model = load_weights(VQ16(config), chameleon_tokenizer(state), tmp_path)
    stored, close = load_file(FOLDER / f"chameleon_{name}_io.safetensors"), {"atol": 1e-4, "rtol": 0}
    codes = stored["codes"].long()
    with torch.no_grad():
        torch.testing.assert_close(model.reconstruct(model.decoded_codebook[codes]), stored["decoded"], **close)
        latents = model.latents(stored["image"])
    torch.testing.assert_close(model.decode(codes), stored["decoded"].clamp(-1, 1), **close)
    torch.testing.assert_close(latents, stored["encoder_prequant"].flatten(2).transpose(1, 2), **close)
    is_clear = stored["nn_margin"] > 1e-3
    found = model.encode(stored["image"])
    assert is_clear.any() and torch.equal(found[is_clear], stored["encoder_codes"][is_clear])
    decoded = stored["decoded_from_encoder"].clamp(-1, 1)
    torch.testing.assert_close(model.decode(stored["encoder_codes"]), decoded, **close)
