"""Tests of Emu3's image tokenizer against numbers of baaivision/Emu3@f6ea9aa.

The tiny weights are made again from their recipe.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.families import draw_emu3_tokenizer, emu3_name
from helpers.paths import DATA
from helpers.published_layouts import refusal
from lantern.models.stored import save_model
from lantern_models.cards.card import ImageSettings
from lantern_models.checkpoints.image_tokenizers import load_tokenizer, read_tokenizer
from lantern_models.images.emu3 import Emu3Tokenizer, Emu3TokenizerConfig

STORED = load_file(DATA / "emu3" / "vq_io.safetensors")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("emu3") / "model.safetensors"
    save_file(draw_emu3_tokenizer(), path)
    return path


@torch.inference_mode()
def test_pixels_codes_and_our_own_layout(file, tmp_path):
    """Images have three lines of four codes. A few weights differ, because their rounding to half precision does."""
    model = read_tokenizer(file, ImageSettings(size=8, grid=4, codebook_size=64, code_dim=4))
    torch.testing.assert_close(model.vqvae.decode(STORED["codes"].long()), STORED["decoded"], atol=1e-3, rtol=0)
    found = torch.stack(model.vqvae.encode(STORED["image"], torch.tensor([[6, 8]] * 2)).image_tokens)
    is_clear = STORED["nn_margin"] > 1e-3
    assert torch.equal(found[is_clear], STORED["encoder_codes"].long()[is_clear]) and is_clear.any()
    save_model(tmp_path / "model.safetensors", model)
    again, codes = load_tokenizer(tmp_path / "model.safetensors"), torch.arange(32).view(2, 16)
    images = again.decode(codes)
    assert isinstance(again, Emu3Tokenizer) and images.shape == (2, 3, 8, 8) and images.abs().max() <= 1
    assert torch.equal(images, model.decode(codes)) and again.encode(images).shape == (2, 16)
    assert again.config.image_size == 8 and torch.equal(again.decoded_codebook, model.codebook)


def test_counters_of_batches_may_be_missing(file, tmp_path):
    state = {name: part for name, part in load_file(file).items() if not name.endswith("num_batches_tracked")}
    assert len(state) < len(load_file(file))
    save_file(state, tmp_path / "model.safetensors")
    sizes, codes = ImageSettings(size=8, grid=4, codebook_size=64, code_dim=4), torch.arange(32).view(2, 16)
    found, expected = (read_tokenizer(path, sizes) for path in (tmp_path / "model.safetensors", file))
    assert torch.equal(found.decode(codes), expected.decode(codes))
    state.pop(next(name for name in state if name.endswith("decoder.conv_out.bias")))
    save_file(state, tmp_path / "model.safetensors")
    assert "lacks the tensor vqvae.decoder.conv_out.bias" in refusal(lambda: read_tokenizer(tmp_path, sizes))


def test_a_file_of_wide_images_keeps_their_shape(file, tmp_path):
    sizes = ImageSettings(size=(6, 8), grid=(3, 4), codebook_size=64, code_dim=4)
    model = read_tokenizer(file, sizes)
    save_model(tmp_path / "model.safetensors", model)
    again = read_tokenizer(tmp_path / "model.safetensors", sizes)
    assert (again.config.grid, again.config.shape, again.config.image_size) == ((3, 4), (3, 4), (6, 8))
    codes = torch.arange(24).view(2, 12)
    images = again.decode(codes)
    assert torch.equal(images, model.decode(codes.view(2, 3, 4))) and images.shape == (2, 3, 6, 8)
    assert again.encode(images).shape == (2, 12)
    sentence = refusal(lambda: read_tokenizer(tmp_path / "model.safetensors", replace(sizes, size=(8, 6), grid=(4, 3))))
    assert "image_size should be (8, 6) to fit the model (image size), found (6, 8)" in sentence


def test_the_defaults_are_the_published_sizes():
    """Every published tensor has a parameter, except 1 x 1 convolutions, which are matrices here."""
    published = json.loads((DATA / "emu3" / "keys.json").read_text())
    with torch.device("meta"):
        model = Emu3Tokenizer(Emu3TokenizerConfig())
    places = {emu3_name(name): list(value.shape) for name, value in model.vqvae.state_dict().items()}
    found = {name: shape[: len(places[name])] for name, shape in published.items()}
    assert found == places
    assert model.config.image_size == 720


def test_sizes_from_json_are_those_of_python():
    sizes = Emu3TokenizerConfig(channels=32)
    assert Emu3TokenizerConfig(**json.loads(json.dumps(asdict(sizes)))) == sizes


def test_what_does_not_fit_is_one_sentence(file, tmp_path):
    assert "codebook_size should be 32 to fit the model (codebook_size), found 64" in refusal(
        lambda: read_tokenizer(file, ImageSettings(8, 4, 32, 4))
    )
    assert "the image size should be a multiple of 2" in refusal(
        lambda: read_tokenizer(file, ImageSettings(9, 4, 64, 4))
    )
    cut, path = load_file(file), tmp_path / "cut.safetensors"
    cut.pop("vqmodel.encoder.conv_in.weight")
    save_file(cut, path)
    assert "lacks the tensor encoder.conv_in.weight" in refusal(
        lambda: read_tokenizer(path, ImageSettings(8, 4, 64, 4))
    )
