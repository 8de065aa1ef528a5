"""Tests of the image tokenizer: shapes, nearest codes against a slow version, errors."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from helpers.published_layouts import ORIGINAL, refusal, vq_state, write_vq
from lantern.models.stored import save_model
from lantern_models.cards.card import ImageSettings
from lantern_models.checkpoints.image_tokenizers import load_tokenizer, read_tokenizer
from lantern_models.images.shapes import ImageTokenizer, TokenizerConfig, nearest_rows
from lantern_models.images.vq16 import VQ16
from lantern_pipeline.training.tokenizer import evaluate_tokenizer
from lantern_pipeline.world.attribute_classifier import AttributeClassifier, AttributeClassifierConfig
from lantern_pipeline.world.scenes import caption, render, sample_scene

VQ_SIZES = ImageSettings(size=8, grid=4, codebook_size=16, code_dim=8)
SCENES = [sample_scene(0, i, "train") for i in range(6)]


@pytest.fixture(scope="module")
def tokenizer():
    torch.manual_seed(0)
    return ImageTokenizer(
        TokenizerConfig(codebook_size=64, encoder_width=16, decoder_width=16, decoder_blocks=1)
    ).eval()


@pytest.fixture(scope="module")
def images():
    return render(SCENES, 0, range(6))


def test_codes_are_the_nearest_rows_by_brute_force_whatever_the_batch(tokenizer, images):
    codes, latents = tokenizer.encode(images), tokenizer.latents(images).detach()
    assert codes.shape == (6, 64) and codes.dtype == torch.int64
    assert torch.equal(codes[4:5], tokenizer.encode(images[4:5]))
    assert torch.allclose(latents.norm(dim=-1), torch.ones(6, 64), atol=1e-5)
    rows = F.normalize(tokenizer.embedding, dim=-1)
    assert tokenizer.codebook.shape == (64, 8) and torch.allclose(tokenizer.codebook, rows)
    for image, position in [(0, 0), (2, 17), (5, 63)]:
        distances = [float((latents[image, position] - row).square().sum()) for row in rows]
        assert distances[codes[image, position]] <= min(distances) + 1e-6
    rows = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    assert nearest_rows(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), rows).tolist() == [1, 0]  # the first one wins a tie


def test_decoded_images_have_tokens_in_reading_order(tokenizer, images):
    codes = tokenizer.encode(images)
    decoded = tokenizer.decode(codes)
    assert decoded.shape == images.shape and decoded.dtype == torch.float32
    assert decoded.min() >= -1 and decoded.max() <= 1
    assert torch.allclose(decoded[4:5], tokenizer.decode(codes[4:5]), atol=1e-5)
    codes = torch.zeros(2, 64, dtype=torch.int64)
    codes[1, 7] = 1  # row 0, column 7: top right
    first, second = tokenizer.decode(codes)
    row, column = divmod(int((first - second).abs().sum(0).argmax()), 48)
    assert row < 18 and column >= 30


def test_evaluation_counts_codes_and_error(tokenizer, images):
    attribute_classifier = AttributeClassifier(AttributeClassifierConfig(width=8)).eval()
    result = evaluate_tokenizer(tokenizer, attribute_classifier, images, list(map(caption, SCENES)))
    codes = tokenizer.encode(images)
    assert result["codes_used_share"] == pytest.approx(len(codes.unique()) / 64)
    error = ((tokenizer.decode(codes) - images) / 2).square().mean((1, 2, 3))
    assert result["psnr_db"] == pytest.approx(float((-10 * error.log10()).mean()), abs=1e-3)
    shares = codes.flatten().bincount() / codes.numel()
    entropy = -sum(float(share) * float(share.log()) for share in shares if share)
    assert result["perplexity"] == pytest.approx(2.718281828**entropy, rel=1e-4) and 0 <= result["accuracy"] <= 1
    assert "accuracy" not in evaluate_tokenizer(tokenizer, None, images, [])


def test_wrong_shapes_and_codes_are_refused(tokenizer):
    with pytest.raises(ValueError, match="images must have shape"):
        tokenizer.encode(torch.zeros(1, 3, 32, 32))
    with pytest.raises(ValueError, match="codes must have shape"):
        tokenizer.decode(torch.zeros(1, 63, dtype=torch.int64))
    with pytest.raises(ValueError, match="codes must be in \\[0, 64\\), got 64 to 64"):
        tokenizer.decode(torch.full((1, 64), 64))


def test_a_file_holds_our_tokenizer_or_a_published_one(tokenizer, images, tmp_path):
    path = tmp_path / "tokenizer.safetensors"
    save_model(path, tokenizer)
    assert torch.equal(load_tokenizer(path).encode(images), tokenizer.encode(images))
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"tokenizer.safetensors"):
        load_tokenizer(path)
    model = read_tokenizer(write_vq(tmp_path / "vq_ds16_t2i.pt"), VQ_SIZES)
    assert isinstance(model, VQ16) and not model.training
    assert torch.equal(model.codebook, vq_state()["quantize.embedding.weight"])
    save_model(path, ImageTokenizer(TokenizerConfig(image_size=8, grid=4, codebook_size=16)))
    assert isinstance(read_tokenizer(path, VQ_SIZES), ImageTokenizer)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"codebook_size": 16384}, ["codebook_size should be 16384 to fit the model (codebook_size), found 16"]),
        ({"code_dim": 4}, ["code_dim should be 4 to fit the model (code_dim), found 8"]),
        ({"size": 16}, ["grid should be 4 to fit the model (grid), found 8"]),
        ({"size": 9}, ["the image size should be a multiple of 2, got 9"]),
    ],
    ids=str,
)
def test_wrong_sizes_of_image_tokenizers(tmp_path, sizes, words):
    path = write_vq(tmp_path / "vq.pt")
    sentence = refusal(lambda: read_tokenizer(path, replace(VQ_SIZES, **sizes)))
    assert all(word in sentence for word in ["vq.pt", *words]), sentence


def test_wrong_image_tokenizers(tmp_path):
    foreign = write_vq(tmp_path / "vq.pt", **{"decoder.mid.3.conv1.weight": torch.zeros(1)})
    assert "unexpected tensor decoder.mid.3.conv1.weight" in refusal(lambda: read_tokenizer(foreign, VQ_SIZES))
    sentence = refusal(lambda: read_tokenizer(ORIGINAL, VQ_SIZES))
    assert "lacks the tensor quantize.embedding.weight" in sentence
