"""Tests of prompts of token ids: form of each family, null prompt, cut prompts, errors."""

from __future__ import annotations

import json
import logging

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from helpers.families import SPECIALS, save_tokenizer
from helpers.tiny_processors import make_emu3_processor, make_glm_processor, make_janus_processor
from lantern_models.families import FAMILIES
from lantern_models.text.token_prompts import read_names
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.schema.run_config import TextSettings

WORDS = ["a", "red", "cat", "dog", ":", "Generate", ".", "90", "*", "2"]  # ids from 101
IDS = {word: 101 + i for i, word in enumerate(WORDS)}
CAPTION = [IDS[word] for word in ("a", "red", "cat")]
NULL = {"anole": (0, 69), "lumina": (69, 75, 75), "janus": (0, 7)}


@pytest.fixture
def encoder_of(tmp_path):
    def make(family: str, max_tokens: int = 80, **changes):
        path = save_tokenizer(tmp_path / "tokenizer.json", SPECIALS[family] | changes, WORDS)
        names = {"bos_token": "<bos>", "grid_bos_token": "<sop>", "grid_eos_token": "<eop>"}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(names))
        return of_text(family, path, max_tokens)

    return make


def of_text(family: str, checkpoint, max_tokens: int = 12, *file):
    checkpoint = checkpoint and str(checkpoint)
    grids = [48, 0] if family == "lumina" else [90, 2]
    text = TextSettings.model_construct(encoder=family, checkpoint=checkpoint, max_tokens=max_tokens, grids=grids)
    return make_text_encoder(text, "none", *file)


def prompt(encoder, text: str) -> list[int]:
    ids, mask = encoder.encode([text])
    assert ids.shape == mask.shape == (1, encoder.max_tokens) and ids.dtype == torch.int64
    assert mask[0].tolist() == sorted(mask[0].tolist())  # padding comes first
    return ids[mask].tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_has_the_form_of_its_family(encoder_of, family):
    encoder = encoder_of(family)
    unknown = [100]
    found = {
        "anole": [0, *CAPTION, 70, 69],
        "lumina": [0, IDS["Generate"], *unknown * 9, IDS[":"], *CAPTION, 70, 69, 75, 75],
        "janus": [0, 8, IDS[":"], *CAPTION, 9, IDS[":"], 7],
        "glm_image": [*CAPTION, 3, IDS["90"], IDS["90"], 4, 3, IDS["2"], IDS["2"], 4, 20],
        "emu3": [3, *CAPTION, *unknown * 7, IDS["."], 4, IDS["90"], IDS["*"], IDS["90"], 5],
    }[family]
    assert prompt(encoder, "a red cat") == found


def test_prompts_state_the_height_and_width_of_an_image_that_is_no_square(encoder_of):
    """Lumina-mGPT states width x height in pixels and then a token for each, the height first."""
    lumina = encoder_of("lumina").with_shape((48, 4), (0, 0))
    assert lumina.form.text == "Generate an image of 64x768 according to the following prompt:\n{}"
    assert prompt(lumina, "a")[-2:] == [75, 76] and lumina.null_prompt["null_ids"] == (69, 75, 76)
    glm = encoder_of("glm_image").with_shape((90, 2), (2, 90))
    assert prompt(glm, "a")[1:] == [3, IDS["90"], IDS["2"], 4, 3, IDS["2"], IDS["90"], 4, 20]
    with pytest.raises(ValueError, match=r"must be even numbers of codes for these prompts, got \(48, 3\)"):
        lumina.with_shape((48, 3), (0, 0))


def test_the_null_prompt_is_the_familys(encoder_of):
    for family, ids in NULL.items():
        assert encoder_of(family).null_prompt == {"null_ids": ids, "null_filler": 2 if family == "janus" else None}
    emu3 = encoder_of("emu3").null_prompt["null_ids"]
    assert emu3[0] == 3 and emu3[-5:] == (4, IDS["90"], IDS["*"], IDS["90"], 5) and len(emu3) > 40


def test_what_is_too_long_loses_the_end_of_its_caption_which_is_logged_once(encoder_of, caplog):
    for family, kept in (("anole", [0, 101, 101, 101, 70, 69]), ("janus", [0, 8, 105, 101, 101, 101, 9, 105, 7])):
        caplog.clear()
        encoder = encoder_of(family, max_tokens=len(kept))
        with caplog.at_level(logging.WARNING):
            assert prompt(encoder, "a a a") == kept
            assert not caplog.records
            assert prompt(encoder, "a a a dog dog") == prompt(encoder, "a a a cat dog") == kept
            prompt(encoder, "a a a cat dog")
        assert [record.getMessage() for record in caplog.records] == [
            f"prompt 'a a a {last} dog' is cut to max_tokens = {len(kept)} tokens" for last in ("dog", "cat")
        ]


def test_a_prompt_does_not_depend_on_its_batch_nor_on_what_the_file_says_of_lengths(encoder_of, tmp_path):
    encoder = encoder_of("anole", 12)
    together, _ = encoder.encode(["a cat", "a red dog"])
    assert torch.equal(together[1:], encoder.encode(["a red dog"])[0])
    content = json.loads(encoder.path.read_text())
    content["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    encoder.path.write_text(json.dumps(content))
    again = of_text("anole", tmp_path)
    assert torch.equal(again.encode(["a red dog"])[0], together[1:])


def test_the_names_of_codes_must_agree_with_what_is_drawn(encoder_of):
    encoder_of("anole", IMGIMGAZ=4, IMGIMGBAZ=14)
    with pytest.raises(ValueError, match=r"token IMGIMGBAZ should have id 14, as code 10 has in the target, found 15"):
        encoder_of("anole", IMGIMGAZ=4, IMGIMGBAZ=15)


def test_errors_are_one_sentence(encoder_of, tmp_path):
    with pytest.raises(ValueError, match=r"max_tokens must be at least 7 for the form of these prompts, got 6"):
        encoder_of("janus", 6)
    with pytest.raises(ValueError, match=r"tokenizer.json lacks the token <reserved08706>"):
        path = save_tokenizer(tmp_path / "tokenizer.json", {"<s>": 0, "<racm3:break>": 1}, WORDS)
        of_text("anole", None, 12, str(path))
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(ValueError, match=r"the tokenizer names no 'bos_token': tokenizer_config.json should be"):
        of_text("glm_image", path)
    (tmp_path / "text_tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"found text_tokenizer.json, tokenizer.json"):
        of_text("anole", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"there is no file resources/nothing\.json"):
        of_text("anole", "nothing")


GRID = {"grid_bos_token": "<sop>", "grid_eos_token": "<eop>"}
ADDED = {"__type": "AddedToken", "content": "<bos>", "lstrip": False, "normalized": False, "special": True}
FORMS = {  # tokenizer_config.json, special_tokens_map.json -> names of GLM-Image's tokens
    "top": ({"bos_token": "<bos>", **GRID}, {}),
    "mapping": ({"bos_token": "<bos>", "extra_special_tokens": GRID}, {}),
    "list beside the names": ({"bos_token": "<bos>", **GRID, "extra_special_tokens": ["<eoi>"]}, {}),
    "published": (
        {"bos_token": "<bos>", "extra_special_tokens": ["<sop>", "<eop>"], "model_specific_special_tokens": GRID},
        {},
    ),
    "empty list": ({"bos_token": "<bos>", **GRID, "extra_special_tokens": []}, {}),
    "null": ({"bos_token": "<bos>", **GRID, "extra_special_tokens": None, "pad_token": None}, {}),
    "of transformers 4": (
        {
            "bos_token": ADDED,
            "additional_special_tokens": [ADDED, "<eoi>"],
            "added_tokens_decoder": {"20": {key: value for key, value in ADDED.items() if key != "__type"}},
            "extra_special_tokens": GRID,
            "add_bos_token": True,
        },
        {"bos_token": "<sop>"},
    ),
    "of two files": (
        {"bos_token": "<sop>", "additional_special_tokens": ["<eoi>"]},
        {"bos_token": {"content": "<bos>", "lstrip": False}, **GRID, "additional_special_tokens": ["<eoi>"]},
    ),
    "mapping in the second file": ({"bos_token": "<bos>"}, {"extra_special_tokens": GRID}),
}


@pytest.mark.parametrize("form", FORMS)
def test_names_of_special_tokens_are_those_that_transformers_finds(tmp_path, form):
    save_tokenizer(tmp_path / "tokenizer.json", SPECIALS["glm_image"] | {"<eoi>": 21}, WORDS)
    settings, second = FORMS[form]
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **settings}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    if second:
        (tmp_path / "special_tokens_map.json").write_text(json.dumps(second))
    assert read_names(tmp_path) == AutoTokenizer.from_pretrained(tmp_path).special_tokens_map
    assert read_names(tmp_path) == {"bos_token": "<bos>", **GRID}
    assert prompt(of_text("glm_image", tmp_path, 80), "a red cat")[-1] == 20


@pytest.mark.parametrize(
    ("make", "more"),
    [(make_janus_processor, None), (make_emu3_processor, ["<more>"]), (lambda: make_glm_processor(20), [])],
)
def test_names_in_a_folder_that_transformers_saved_once_or_twice(tmp_path, make, more):
    tokenizer = make().tokenizer
    if more is not None:
        tokenizer.add_special_tokens({"extra_special_tokens": more})
    for turn in ("once", "twice"):
        tokenizer.save_pretrained(tmp_path / turn)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / turn)
        assert read_names(tmp_path / turn) == tokenizer.special_tokens_map
        assert "image_token" in tokenizer.special_tokens_map


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"extra_special_tokens": 5}, "extra_special_tokens should be a mapping or a list of tokens, found 5"),
        ({"extra_special_tokens": ["<a>", 5]}, r"extra_special_tokens\[1\] should be a token, found 5"),
        ({"extra_special_tokens": {"a_token": 5}}, r"extra_special_tokens\.a_token should be a token, found 5"),
        ({"model_specific_special_tokens": ["<a>"]}, "model_specific_special_tokens should be a mapping of tokens, "),
        ({"additional_special_tokens": "<a>"}, "additional_special_tokens should be a mapping or a list of tokens, f"),
        ({"bos_token": 5}, "bos_token should be a token, found 5"),
        ([], "should hold keys and values, found list"),
    ],
)
def test_special_tokens_of_another_form_are_one_sentence(tmp_path, settings, sentence):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=rf"tokenizer_config\.json:? {sentence}"):
        read_names(tmp_path)
