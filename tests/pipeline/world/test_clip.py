"""Tests of the small CLIP model: tokens and cosines by hand, checkpoints."""

import pytest
import torch

from lantern.models.stored import save_model
from lantern_pipeline.world.clip import ClipConfig, ClipModel, ClipScorer, WordTokenizer, cut_texts

WORDS = ("a", "red", "blue", "ring", "on", "grass")
CONFIG = ClipConfig(WORDS, context_length=8, embed_dim=8, width=4, text_width=32, text_layers=1, input_size=32)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return ClipModel(CONFIG).eval()


def test_tokens_by_hand():
    # 0 pad, 1 unknown, 2... words, then start (8) and end (9), the highest
    expected = [[8, 2, 3, 5, 9, 0, 0, 0], [8, 7, 9, 0, 0, 0, 0, 0]]
    assert WordTokenizer(WORDS, 8)(["A red ring.", "grass"]).tolist() == expected
    with pytest.raises(ValueError, match="unknown word 'green' in caption 'a green ring'"):
        WordTokenizer(WORDS, 6)(["a green ring"])
    with pytest.raises(ValueError, match="has 6 words; the CLIP model reads 4"):
        WordTokenizer(WORDS, 6)(["a red ring on grass a"])
    is_open = WordTokenizer(WORDS, 5, is_open_vocabulary=True)
    assert is_open(["a green ring on grass"]).tolist() == [[8, 2, 1, 5, 9]]  # one token for others, and a cut
    assert cut_texts(is_open, ["a green ring", "a green ring on grass"]) == ["a green ring on grass"]


def test_scores_are_cosines_of_each_pair_and_a_checkpoint_has_the_same(model, tmp_path):
    images = torch.rand(5, 3, 48, 48) * 2 - 1
    texts = ["a red ring", "a blue ring", "grass", "on grass", "a"]
    with torch.no_grad():
        of_images = model.clip.encode_image(model.preprocess(images)).double()
        of_texts = model.clip.encode_text(model.tokenizer(texts)).double()
    expected = (of_images * of_texts).sum(1) / (of_images.square().sum(1) * of_texts.square().sum(1)).sqrt()
    found = ClipScorer.from_model(model).score(images, texts, batch_size=2)
    assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    path = tmp_path / "clip.safetensors"
    save_model(path, model, {"num_steps": 3})
    read = ClipScorer.from_checkpoint(path).score(images, texts, batch_size=2)
    torch.testing.assert_close(read, found, atol=1e-6, rtol=0)  # weights read may have another layout in memory
    save_model(path, model)
    with pytest.raises(ValueError, match="refusing to score with random weights"):
        ClipScorer.from_checkpoint(path)
