"""The image tokenizer: shapes, nearest codes against a slow oracle, what it refuses."""

import pytest
import torch
import torch.nn.functional as F

from lantern.checkpoints.native import save_model
from lantern.models.vq16 import VQ16
from lantern_pipeline.world.attribute_classifier import AttributeClassifier, AttributeClassifierConfig
from lantern_pipeline.world.scenes import render, sample_scene
from lantern_pipeline.world.tokenizer import (
    ImageTokenizer,
    TokenizerConfig,
    evaluate_tokenizer,
    load_tokenizer,
    nearest_rows,
    read_tokenizer,
)
from published_layouts import ORIGINAL, refusal, vq_state, write_vq

VQ_SIZES = {"image_size": 8, "grid": 4, "codebook_size": 16, "code_dim": 8}
SMALL = TokenizerConfig(codebook_size=64, encoder_width=16, decoder_width=16, decoder_blocks=1)


@pytest.fixture(scope="module")
def tokenizer():
    torch.manual_seed(0)
    return ImageTokenizer(SMALL).eval()


@pytest.fixture(scope="module")
def images():
    return render([sample_scene(0, i, "train") for i in range(6)], 0, range(6))


def test_encode_and_decode_have_the_shapes_of_the_interface(tokenizer, images):
    codes = tokenizer.encode(images)
    assert codes.shape == (6, 64) and codes.dtype == torch.int64
    decoded = tokenizer.decode(codes)
    assert decoded.shape == images.shape and decoded.dtype == torch.float32
    assert decoded.min() >= -1 and decoded.max() <= 1
    assert tokenizer.codebook.shape == (64, 8)
    assert torch.allclose(tokenizer.codebook.norm(dim=-1), torch.ones(64))


def test_codes_are_the_nearest_rows_by_brute_force(tokenizer, images):
    latents = tokenizer.latents(images).detach()
    assert torch.allclose(latents.norm(dim=-1), torch.ones(6, 64), atol=1e-5)
    codes = tokenizer.encode(images)
    rows = F.normalize(tokenizer.embedding, dim=-1)
    for image, position in [(0, 0), (2, 17), (5, 63)]:
        distances = [float((latents[image, position] - row).square().sum()) for row in rows]
        assert distances[codes[image, position]] <= min(distances) + 1e-6


def test_first_code_wins_a_tie():
    rows = F.normalize(torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]]), dim=-1)
    assert nearest_rows(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), rows).tolist() == [1, 0]


def test_codes_and_images_do_not_depend_on_the_batch(tokenizer, images):
    codes = tokenizer.encode(images)
    assert torch.equal(codes[4:5], tokenizer.encode(images[4:5]))
    assert torch.allclose(tokenizer.decode(codes)[4:5], tokenizer.decode(codes[4:5]), atol=1e-5)


def test_tokens_are_in_reading_order():
    torch.manual_seed(1)
    tokenizer = ImageTokenizer(SMALL).eval()
    codes = torch.zeros(1, 64, dtype=torch.int64)
    changed = codes.clone()
    changed[0, 7] = 1  # row 0, column 7: top right
    difference = (tokenizer.decode(codes) - tokenizer.decode(changed)).abs().sum(1)[0]
    row, column = divmod(int(difference.argmax()), 48)
    assert row < 18 and column >= 30


def test_evaluation_counts_codes_and_error(tokenizer, images):
    attribute_classifier = AttributeClassifier(AttributeClassifierConfig(width=8)).eval()
    scenes = [sample_scene(0, i, "train") for i in range(6)]
    result = evaluate_tokenizer(tokenizer, attribute_classifier, images, scenes)
    codes = tokenizer.encode(images)
    assert result["codes_used_share"] == pytest.approx(len(codes.unique()) / 64)
    error = ((tokenizer.decode(codes) - images) / 2).square().mean((1, 2, 3))
    assert result["psnr_db"] == pytest.approx(float((-10 * error.log10()).mean()), abs=1e-3)
    assert 1 <= result["perplexity"] <= 64 and 0 <= result["accuracy"] <= 1
    assert "accuracy" not in evaluate_tokenizer(tokenizer, None, images, None)


def test_bad_sizes_and_codes_are_rejected(tokenizer):
    with pytest.raises(ValueError, match=r"tokenizer.image_size must be a multiple of 2 \* grid = 16, got 50"):
        TokenizerConfig(image_size=50)
    with pytest.raises(ValueError, match="images must have shape"):
        tokenizer.encode(torch.zeros(1, 3, 32, 32))
    with pytest.raises(ValueError, match="codes must have shape"):
        tokenizer.decode(torch.zeros(1, 63, dtype=torch.int64))
    with pytest.raises(ValueError, match="codes must be in \\[0, 64\\), got 0 to 64"):
        tokenizer.decode(torch.arange(64).roll(1)[None] + torch.eye(64, dtype=torch.int64)[:1])


def test_saved_model_is_the_same_and_foreign_files_are_named(tokenizer, images, tmp_path):
    path = tmp_path / "tokenizer.safetensors"
    save_model(path, tokenizer)
    assert torch.equal(load_tokenizer(path).encode(images), tokenizer.encode(images))
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"tokenizer.safetensors"):
        load_tokenizer(path)


def test_vq16_and_own_tokenizers(tmp_path):
    state = vq_state()
    model = read_tokenizer(write_vq(tmp_path / "vq_ds16_t2i.pt"), **VQ_SIZES)
    assert isinstance(model, VQ16)
    assert torch.equal(model.codebook, state["quantize.embedding.weight"])
    assert not model.training
    own = ImageTokenizer(TokenizerConfig(image_size=8, grid=4, codebook_size=16))
    save_model(tmp_path / "own.safetensors", own)
    assert isinstance(read_tokenizer(tmp_path / "own.safetensors", **VQ_SIZES), ImageTokenizer)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"codebook_size": 16384}, ["codebook_size should be 16384 as tokenizer.codebook_size says, found 16"]),
        ({"code_dim": 4}, ["code_dim should be 4 as tokenizer.code_dim says, found 8"]),
        ({"image_size": 16}, ["grid should be 4", "tokenizer.grid", "found 8"]),
        ({"image_size": 9}, ["data.image_size should be a multiple of 2, got 9"]),
    ],
    ids=str,
)
def test_wrong_sizes_of_image_tokenizers(tmp_path, sizes, words):
    path = write_vq(tmp_path / "vq.pt")
    sentence = refusal(lambda: read_tokenizer(path, **{**VQ_SIZES, **sizes}))
    for word in ["vq.pt", *words]:
        assert word in sentence, sentence


def test_wrong_image_tokenizers(tmp_path):
    path = write_vq(tmp_path / "vq.pt", **{"decoder.mid.3.conv1.weight": torch.zeros(1)})
    assert "foreign tensor decoder.mid.3.conv1.weight" in refusal(lambda: read_tokenizer(path, **VQ_SIZES))
    state = vq_state()
    state.pop("decoder.conv_out.bias")
    torch.save({"model": state}, path)
    assert "lacks the tensor decoder.conv_out.bias of shape (3,)" in refusal(lambda: read_tokenizer(path, **VQ_SIZES))
    sentence = refusal(lambda: read_tokenizer(ORIGINAL, **VQ_SIZES))
    assert "lacks the tensor quantize.embedding.weight" in sentence
