import math

import pytest
import torch

from lantern.checkpoints.native import save_model
from lantern_pipeline.world.clip import ClipConfig, ClipModel, ClipScorer, WordTokenizer

WORDS = ("a", "red", "blue", "ring", "on", "grass")
CONFIG = ClipConfig(WORDS, context_length=8, embed_dim=8, width=4, text_width=32, text_layers=1, input_size=32)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return ClipModel(CONFIG).eval()


def test_tokens_by_hand():
    tokenizer = WordTokenizer(WORDS, 8)
    # 0 pad, 1 unknown, 2... words, then start (8) and end (9), the highest
    assert tokenizer(["A red ring.", "grass"]).tolist() == [[8, 2, 3, 5, 9, 0, 0, 0], [8, 7, 9, 0, 0, 0, 0, 0]]
    assert tokenizer.num_tokens == 10


def test_closed_vocabulary_names_word_and_caption():
    tokenizer = WordTokenizer(WORDS, 6)
    with pytest.raises(ValueError, match="unknown word 'green' in caption 'a green ring'"):
        tokenizer(["a green ring"])
    with pytest.raises(ValueError, match="has 6 words; the CLIP model reads 4"):
        tokenizer(["a red ring on grass a"])


def test_open_vocabulary_shares_a_token_and_cuts():
    tokenizer = WordTokenizer(WORDS, 5, is_open_vocabulary=True)
    assert tokenizer(["a green ring on grass"]).tolist() == [[8, 2, 1, 5, 9]]


def test_scores_are_cosines_of_each_pair(model):
    scorer = ClipScorer.from_model(model)
    images = torch.rand(5, 3, 48, 48) * 2 - 1
    texts = ["a red ring", "a blue ring", "grass", "on grass", "a"]
    with torch.no_grad():
        image_features = model.clip.encode_image(model.preprocess(images))
        text_features = model.clip.encode_text(model.tokenizer(texts))
    expected = []
    for a, b in zip(image_features.tolist(), text_features.tolist(), strict=True):
        dot = sum(x * y for x, y in zip(a, b, strict=True))
        expected.append(dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b)))
    assert scorer.score(images, texts, batch_size=2).tolist() == pytest.approx(expected, abs=1e-5)


def test_one_text_per_image(model):
    with pytest.raises(ValueError, match="2 images and 1 texts"):
        ClipScorer.from_model(model).score(torch.zeros(2, 3, 48, 48), ["a"])


def test_checkpoint_round_trip(model, tmp_path):
    save_model(tmp_path / "clip.safetensors", model, {"num_steps": 3})
    images, texts = torch.rand(2, 3, 48, 48) * 2 - 1, ["a red ring", "grass"]
    before = ClipScorer.from_model(model).score(images, texts)
    assert torch.equal(ClipScorer.from_checkpoint(tmp_path / "clip.safetensors").score(images, texts), before)


def test_random_weights_are_refused(model, tmp_path):
    save_model(tmp_path / "clip.safetensors", model)
    with pytest.raises(ValueError, match="refusing to score with random weights"):
        ClipScorer.from_checkpoint(tmp_path / "clip.safetensors")


def test_input_size_must_fit_the_tower():
    with pytest.raises(ValueError, match="multiple of 32"):
        ClipConfig(WORDS, input_size=48)
