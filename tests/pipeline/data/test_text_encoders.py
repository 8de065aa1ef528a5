"""Tests of word embeddings: padding, determinism, order of words, errors."""

from pathlib import Path

import pytest
import torch

from helpers.configs import load_config, typed_config
from helpers.paths import ROOT
from lantern_models.text.classes import IMAGENET_CLASSES
from lantern_models.text.encoders import WORD_FEATURES, compare_features, describe_features
from lantern_models.text.words import WordEmbeddingEncoder
from lantern_pipeline.data.model_cards import prompt_settings
from lantern_pipeline.data.text_encoders import make_text_encoder, unknown_words
from lantern_pipeline.schema.run_config import TextSettings
from lantern_pipeline.world.scenes import VOCABULARY


def encoder_of_classes(num_classes, source):
    return make_text_encoder(TextSettings.model_construct(encoder="classes", num_classes=num_classes), source)


def test_features_are_left_padded_with_zeros():
    features, mask = WordEmbeddingEncoder(VOCABULARY).encode(["a large red circle on grass", "on night"])
    assert features.shape == (2, 16, 256) and features.dtype == torch.float32
    assert mask.sum(1).tolist() == [6, 2]
    assert mask[0, -6:].all() and mask[1, -2:].all()
    assert (features[~mask] == 0).all() and (features[mask] != 0).all()


def test_a_word_has_one_embedding_up_to_the_signs_of_its_position():
    features, _ = WordEmbeddingEncoder(None, phrase_words=1).encode(["red blue red"])
    first, other, third = features[0, -3:]
    assert torch.equal(first.abs(), third.abs()) and not torch.equal(first, third)
    assert not torch.equal(first.abs(), other.abs())


def test_a_word_also_says_what_stands_before_it():
    texts = ["red circle", "blue circle", "large red circle", "small red circle"]
    short, long = (WordEmbeddingEncoder(None, phrase_words=n).encode(texts)[0][:, -1].abs() for n in (2, 3))
    assert not torch.equal(short[0], short[1])  # red circle, blue circle
    words = WordEmbeddingEncoder(None, phrase_words=2)
    rows = [words._row(name) for name in ("circle", "red circle")]
    assert torch.allclose(short[2], (sum(rows) / 2**0.5).abs())
    assert torch.equal(short[2], short[3]) and not torch.equal(long[2], long[3])


def test_a_target_of_other_features_is_refused():
    text = typed_config(load_config([ROOT / "config.yaml"])).text_settings
    own = make_text_encoder(text, "scenes").encode(["a red square"])[0]
    assert torch.equal(own, WordEmbeddingEncoder(VOCABULARY, **WORD_FEATURES).encode(["a red square"])[0])
    compare_features(Path("t"), {"text": describe_features("words")}, "words")
    compare_features(Path("t"), {}, "words")
    for key, value in {"encoder": "t5", "seed": 1, "phrase_words": 1}.items():
        with pytest.raises(
            ValueError, match=rf"text.{key} should be .* to fit the model \(text encoder\), found {value}"
        ):
            compare_features(Path("t"), {"text": {**describe_features("words"), key: value}}, "words")


def test_the_mean_over_words_tells_the_roles_apart():
    texts = ["a red circle left of a blue square", "a blue circle left of a red square"]
    features, _ = WordEmbeddingEncoder(None).encode(texts)
    mean = features.mean(1)
    assert torch.cosine_similarity(mean[0], mean[1], dim=0) < 0.9


def test_features_do_not_depend_on_batch_or_case_or_punctuation():
    together, _ = WordEmbeddingEncoder(VOCABULARY).encode(["on night", "a red circle on grass"])
    alone, _ = WordEmbeddingEncoder(VOCABULARY).encode(["A red circle, on Grass."])
    assert torch.equal(together[1], alone[0])
    other_seed, _ = WordEmbeddingEncoder(VOCABULARY, seed=1).encode(["a red circle on grass"])
    assert not torch.equal(alone, other_seed)


def test_words_have_numbers_and_the_null_prompt_a_number_of_its_own():
    text = TextSettings.model_construct(encoder="word_ids", max_tokens=8)
    ids, mask = make_text_encoder(text, "scenes").encode(["a red circle on grass", "A large red circle, on sand."])
    assert ids.shape == (2, 8) and mask.sum(1).tolist() == [5, 6] and mask[:, -5:].all()
    assert (ids[~mask] == 0).all() and ids[0, -2] == ids[1, -2] and ids[0, -1] != ids[1, -1]
    sizes = prompt_settings(text).sizes()
    assert ids[mask].min() > 0 and ids.max() <= len(VOCABULARY) < sizes["null_ids"][0] < sizes["num_prompt_ids"]
    with pytest.raises(ValueError, match="unknown word 'dragon'"):
        make_text_encoder(text, "scenes").encode(["a red dragon"])


def test_a_class_of_the_embedded_world_is_a_background_and_the_first_object():
    encoder = encoder_of_classes(180, "scenes")
    texts = ["a small red circle on grass", "a large red circle left of a small blue square on grass"]
    others = ["a small red circle on sand", "a small blue circle on grass", "a small red square on grass"]
    ids, mask = encoder.encode([*texts, *others])
    assert mask.all() and ids[0] == ids[1] and len(set(ids[1:].flatten().tolist())) == 4 and ids.min() >= 0
    assert ids.max() < 180
    with pytest.raises(ValueError, match=r"text\.num_classes must be 180 for the shapes dataset"):
        encoder_of_classes(10, "scenes")


def test_every_name_of_imagenet_is_its_own_class():
    encoder = encoder_of_classes(1000, "none")
    names = IMAGENET_CLASSES.read_text(encoding="utf-8").splitlines()
    assert [encoder.check(f" {name} ") for name in names] == list(range(1000))
    assert [encoder.check(name.upper()) for name in names if name.lower() != "cardigan"] == [
        number for number in range(1000) if number not in (264, 474)
    ]
    with pytest.raises(ValueError, match=r"may be the classes Cardigan \(264\) and cardigan \(474\); use one of these"):
        encoder.check("CARDIGAN")


def test_a_class_is_a_number_or_a_name_of_imagenet():
    encoder = encoder_of_classes(1000, "none")
    ids, mask = encoder.encode(["207", "Golden retriever", " tench", "999"])
    assert ids.tolist() == [[207], [207], [0], [999]] and mask.all() and mask.shape == ids.shape
    few = encoder_of_classes(10, "none")
    for text, most, made in (("1000", 999, encoder), ("a dog", 999, encoder), ("10", 9, few), ("tench", 9, few)):
        with pytest.raises(ValueError, match=f"prompt '{text}' is no class; give a number from 0 to {most}, or"):
            made.encode([text])


def test_words_that_no_caption_has_are_named():
    captions = ["A red dog, on grass.", "a cat"]
    assert unknown_words(["a RED cow on grass", "the cow's dog"], captions) == ["cow", "the", "cow's"]
    assert unknown_words(["grass grass"], captions) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a red dragon on grass", "'a red dragon on grass' holds the unknown word 'dragon'; known words: a, small"),
        ("a " * 17, "has 17 words; between 1 and 16"),
        ("...", "has 0 words"),
    ],
)
def test_bad_prompts_are_rejected(text, message):
    with pytest.raises(ValueError, match=message):
        WordEmbeddingEncoder(VOCABULARY).encode([text])
