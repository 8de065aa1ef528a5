import json
import math

import pytest
import torch

from lantern.models.clip import ClipConfig, ClipModel, ClipScorer, WordTokenizer, save_clip

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
    save_clip(tmp_path / "clip.safetensors", model, {"num_steps": 3})
    images, texts = torch.rand(2, 3, 48, 48) * 2 - 1, ["a red ring", "grass"]
    before = ClipScorer.from_model(model).score(images, texts)
    assert torch.equal(ClipScorer.from_checkpoint(tmp_path / "clip.safetensors").score(images, texts), before)


def test_random_weights_are_refused(model, tmp_path):
    save_clip(tmp_path / "clip.safetensors", model)
    with pytest.raises(ValueError, match="refusing to score with random weights"):
        ClipScorer.from_checkpoint(tmp_path / "clip.safetensors")
    with pytest.raises(ValueError, match="a random model cannot score"):
        ClipScorer.from_open_clip("ViT-B-32", "")


def test_an_open_clip_architecture_loads_from_a_file(tmp_path):
    # the path that published weights take, without the network: a tiny architecture that open_clip knows by name
    import open_clip

    architecture = {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8, "head_width": 32},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 1, "layers": 1},
    }
    (tmp_path / "lantern-test.json").write_text(json.dumps(architecture))
    open_clip.add_model_config(tmp_path / "lantern-test.json")
    torch.manual_seed(0)
    source = open_clip.create_model("lantern-test", pretrained=None).eval()
    torch.save(source.state_dict(), tmp_path / "weights.pt")
    scorer = ClipScorer.from_open_clip("lantern-test", str(tmp_path / "weights.pt"), prompt_prefix="A photo depicts ")
    images = torch.zeros(1, 3, 48, 48)  # mid-grey, which survives any resizing
    with torch.no_grad():
        text = source.encode_text(open_clip.get_tokenizer("lantern-test")(["A photo depicts a ring"]), normalize=True)
        mean, std = (
            torch.tensor(v)[:, None, None] for v in (open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD)
        )
        image = source.encode_image(((torch.full((1, 3, 64, 64), 0.5)) - mean) / std, normalize=True)
    assert float(scorer.score(images, ["a ring"])) == pytest.approx(float((text * image).sum()), abs=1e-5)


def test_input_size_must_fit_the_tower():
    with pytest.raises(ValueError, match="multiple of 32"):
        ClipConfig(WORDS, input_size=48)
