"""Tests of `lantern.from_transformers(...).generate(...)`: images of stock models, prompts, settings, the example."""

from __future__ import annotations

import json
import pickle
import runpy
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from transformers import GenerationConfig, PreTrainedTokenizerFast, WatermarkingConfig

import lantern
from helpers.families import SPECIALS, save_tokenizer, settings_of
from helpers.paths import ROOT
from helpers.tiny_processors import make_emu3_processor, make_glm_processor, make_janus_processor
from helpers.tiny_transformers import GRIDS, NUM_CODES, make_tiny
from lantern.models.config import TargetConfig
from lantern.sampling import SamplingConfig
from lantern_models.cards.published import CARDS
from lantern_models.checkpoints.target import read_target
from lantern_models.families import FAMILIES

PROCESSORS = {"janus": make_janus_processor, "emu3": make_emu3_processor, "glm_image": lambda: make_glm_processor(20)}
WORDS = ["a", "red", "cat", ":", "2", "3", "4", "*"]


def save_words(folder, name):
    """Write a family's tokenizer with the words WORDS, and the file with the names of its special tokens."""
    save_tokenizer(folder / "tokenizer.json", SPECIALS[name], WORDS)
    names = {"bos_token": "<bos>", "extra_special_tokens": {"grid_bos_token": "<sop>", "grid_eos_token": "<eop>"}}
    names = {"tokenizer_class": "PreTrainedTokenizerFast", **(names if name == "glm_image" else {})}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))


@pytest.fixture
def small_grids(monkeypatch):
    """Give cards and families the small grids of the tiny models."""
    for name, family in (("janus-pro-1b", "janus"), ("emu3-gen", "emu3"), ("glm-image", "glm_image")):
        grids, row, card = dict(GRIDS[family == "glm_image"]), FAMILIES[family], CARDS[name]
        small = {"small_grid": grids["small_grid"]} if family == "glm_image" else {}
        monkeypatch.setitem(CARDS, name, replace(card, images=replace(card.images, grid=grids["grid"])))
        monkeypatch.setitem(FAMILIES, family, replace(row, target={**row.target, **small}))


def open_tiny(tmp_path, name):
    model, grids = make_tiny(name)
    save_words(tmp_path, name)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    return model, lambda **options: lantern.from_transformers(model, tokenizer, grid=grids["grid"], **options)


def test_images_are_drawn_as_the_models_own_settings_say_and_equal_one_by_one_decoding(tmp_path):
    _, wrap = open_tiny(tmp_path, "janus")
    model = wrap()
    assert (model.sampling.temperature, model.sampling.top_k, model.sampling.cfg_scale) == (1.0, 50, 5.0)
    assert model.encoder.encode(["a red cat"])[0][0, -9:].tolist() == [0, 8, 104, 101, 102, 103, 9, 104, 7]
    prompts = ["a red cat", "cat"]
    images, expected = (model.generate(prompts, method=name) for name in ("jacobi", "autoregressive"))
    assert torch.equal(images.codes, expected.codes) and (images.steps < 16).all()
    assert images.pixels.shape[0] == 2 and images.pixels.dtype == "uint8"
    relaxed = model.generate(prompts, method="proximity", drafts="jacobi", tree="chain3", k=3)
    assert relaxed.codes.shape == (2, 16)


def test_emu3_has_a_negative_prompt_and_line_ends(tmp_path):
    _, wrap = open_tiny(tmp_path, "emu3")
    model = wrap()  # its own settings state no sampling, so the card's are used
    assert (model.sampling.temperature, model.sampling.top_k, model.sampling.cfg_scale) == (1.0, 2048, 3.0)
    images = model.generate("a red cat", method="jacobi")
    assert images.codes.shape == (1, 20) and (images.codes.view(4, 5)[:, 4] == 20).all()
    assert images.pixels.shape[1] == images.pixels.shape[2]


def test_glm_image_draws_two_grids_and_colours_for_its_codes(tmp_path, small_grids):
    _, wrap = open_tiny(tmp_path, "glm_image")
    drawn = wrap()
    sides = [3, 106, 106, 4, 3, 105, 105, 4]
    assert drawn.encoder.encode(["a red cat"])[0][0, -12:].tolist() == [101, 102, 103, *sides, 20]
    images = drawn.generate("a red cat", method="jacobi")
    assert images.codes.shape == (1, 4 + 9) and images.pixels.shape == (1, 96, 96, 3)
    squares = torch.from_numpy(images.pixels)[0, ::32, ::32].flatten(0, 1)
    same = (squares[:, None] == squares).all(-1)
    assert torch.equal(same, images.codes[0, 4:, None] == images.codes[0, 4:])  # a colour a code
    with pytest.raises(ValueError, match="no null prompt: set cfg_scale, the guidance, to 1"):
        drawn.generate("a red cat", cfg_scale=3.0)


@pytest.mark.parametrize("name", ["janus", "emu3", "glm_image"])
def test_a_folder_is_the_model_in_it(tmp_path, small_grids, name):
    (tmp_path / "words").mkdir()
    model, wrap = open_tiny(tmp_path / "words", name)
    folder = tmp_path / "vision_language_encoder" if name == "glm_image" else tmp_path
    words = tmp_path / "processor" if name == "glm_image" else tmp_path
    model.generation_config.do_sample = True
    model.save_pretrained(folder)
    words.mkdir(exist_ok=True)
    save_words(words, name)
    if name == "glm_image":
        (tmp_path / "model_index.json").write_text("{}")
    found, expected = (drawn.generate(["a red cat", "cat"], seed=3) for drawn in (lantern.load(tmp_path), wrap()))
    assert torch.equal(found.codes, expected.codes) and (found.pixels == expected.pixels).all()
    (folder / "generation_config.json").unlink()
    with pytest.raises(ValueError, match=r"lacks generation_config.json, which states temperature"):
        lantern.load(tmp_path)


@pytest.mark.parametrize(("name", "more"), [("janus", ["<more>"]), ("emu3", []), ("glm_image", ["<more>"])])
def test_a_folder_whose_tokenizer_transformers_saved_is_the_model_in_it(tmp_path, small_grids, name, more):
    processor = PROCESSORS[name]()
    processor.tokenizer.add_special_tokens({"extra_special_tokens": more})
    model, grids = make_tiny(name)
    model.generation_config.do_sample = True
    for part in (model, processor):
        part.save_pretrained(tmp_path)
    processor.tokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path)  # twice
    expected = lantern.from_transformers(model, processor, grid=grids["grid"]).generate("a red fox", temperature=0.0)
    assert torch.equal(lantern.load(tmp_path).generate("a red fox", temperature=0.0).codes, expected.codes)


def test_generate_itself_draws_by_jacobi_decoding(tmp_path):
    """Tokens of Emu3 with its negative prompt, and of GLM-Image, equal those of transformers' loops."""
    ids = torch.tensor([[1, 11, 12, 13, 14, 7], [1, 31, 32, 33, 34, 7]])
    model, _ = make_tiny("emu3")
    negative = torch.tensor([[1, 9, 8, 7]] * 2)
    options = {"negative_prompt_ids": negative, "guidance_scale": 3.0, "do_sample": False, "max_new_tokens": 20}
    words = [*range(40, 60)]

    def allowed(_, sequence):
        return [6] if (len(sequence) - 6) % 5 == 4 else words

    theirs = model.generate(ids, prefix_allowed_tokens_fn=allowed, min_new_tokens=20, **options)
    ours = model.generate(ids, custom_generate=lantern.custom_generate(grid=4), **options)
    assert torch.equal(ours, theirs)

    model, _ = make_tiny("glm_image")
    sides = torch.tensor([[1, 3, 3], [1, 2, 2]] * 2)
    options = {"image_grid_thw": sides, "images_per_sample": torch.tensor([2, 2]), "max_new_tokens": 13}
    stop = {"min_new_tokens": 13, "suppress_tokens": [NUM_CODES, NUM_CODES + 1]}
    theirs = model.generate(ids, do_sample=False, **options, **stop)
    decode = lantern.custom_generate("jacobi", tree="chain5")
    assert torch.equal(model.generate(ids, do_sample=False, custom_generate=decode, **options), theirs)
    drawn = []
    for method in ("jacobi", "autoregressive", "autoregressive"):
        torch.manual_seed(0 if len(drawn) < 2 else 1)
        decode = lantern.custom_generate(method)
        drawn.append(model.generate(ids, do_sample=True, custom_generate=decode, **options))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[1], drawn[2])
    relaxed = lantern.custom_generate("proximity", drafts="jacobi", tree="chain3", k=3)
    assert model.generate(ids, custom_generate=relaxed, **options).shape == (2, 6 + 13)


@pytest.mark.parametrize("name", ["emu3", "glm_image"])
def test_autocast_and_pickling_change_no_code(tmp_path, small_grids, name):
    _, wrap = open_tiny(tmp_path, name)
    model, prompts = wrap(), ["a red cat", "cat", "red"]
    expected = model.generate(prompts)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(wrap().generate(prompts).codes, expected.codes)
    assert torch.equal(pickle.loads(pickle.dumps(model)).generate(prompts).codes, expected.codes)


def test_a_nan_in_the_image_tokenizer_names_it(tmp_path):
    model, wrap = open_tiny(tmp_path, "janus")
    with torch.no_grad():
        model.model.vqmodel.decoder.conv_out.weight.view(-1)[0] = torch.nan
    with pytest.raises(FloatingPointError, match="pixels of prompt 0 are not finite, from the image tokenizer"):
        wrap().generate("a red cat")


def test_a_prompt_longer_than_max_tokens_is_refused_with_the_number_that_it_needs(tmp_path):
    _, wrap = open_tiny(tmp_path, "janus")
    prompt = "a red cat " * 3
    with pytest.raises(
        ValueError, match=r"at most max_tokens = 14 tokens, got 15 in 'a red .*pass max_tokens=15 to lan"
    ):
        wrap(max_tokens=14).generate(prompt)
    assert wrap(max_tokens=15).generate(prompt).codes.shape == (1, 16)
    for name, value in (("max_tokens", 0), ("max_tokens", "9"), ("family", "no")):
        with pytest.raises(
            ValueError, match=r"max_tokens of from_transformers must be an integer >= 1, |family must be one of"
        ):
            wrap(**{name: value})


CHANGES_TOKENS = {
    "bad_words_ids": [[40], [41]],
    "begin_suppress_tokens": [40],
    "encoder_no_repeat_ngram_size": 2,
    "encoder_repetition_penalty": 1.2,
    "epsilon_cutoff": 0.01,
    "eta_cutoff": 0.01,
    "exponential_decay_length_penalty": (3, 1.1),
    "forced_bos_token_id": 40,
    "forced_eos_token_id": 40,
    "max_time": 1.0,
    "min_p": 0.1,
    "no_repeat_ngram_size": 2,
    "num_beams": 2,
    "num_return_sequences": 4,
    "prompt_lookup_num_tokens": 3,
    "repetition_penalty": 1.1,
    "sequence_bias": [[[43], 5.0]],
    "suppress_tokens": [40],
    "token_healing": True,
    "top_h": 0.4,
    "typical_p": 0.5,
    "watermarking_config": WatermarkingConfig(),
}


@pytest.fixture(scope="module")
def emu3(tmp_path_factory):
    return open_tiny(tmp_path_factory.mktemp("emu3"), "emu3")


def test_settings_of_the_model_that_are_not_applied_are_refused(emu3, monkeypatch):
    model, wrap = emu3
    for number, (name, value) in enumerate(CHANGES_TOKENS.items()):
        known = GenerationConfig(do_sample=(True, None)[number % 2], eos_token_id=2)
        monkeypatch.setattr(model, "generation_config", known)
        setattr(known, name, value)
        with pytest.raises(ValueError, match=rf"^{name} of the model's generation_config must be .* got "):
            wrap()


def test_settings_that_change_nothing_are_accepted(emu3, monkeypatch):
    model, wrap = emu3
    known = GenerationConfig(do_sample=True, min_p=0.0, typical_p=1.0, repetition_penalty=1.0, min_length=3)
    known.bad_words_ids, known.begin_suppress_tokens, known.sequence_bias, known.suppress_tokens = [], (), {}, []
    monkeypatch.setattr(model, "generation_config", known)
    assert wrap().sampling == SamplingConfig(top_k=50)


def test_a_setting_of_zero_is_a_value(emu3, monkeypatch):
    model, wrap = emu3
    known = GenerationConfig(do_sample=True)
    monkeypatch.setattr(model, "generation_config", known)
    known.top_k, known.top_p = 0, 0.0  # transformers keeps the most probable token
    assert wrap().sampling == SamplingConfig(temperature=0.0)
    known.top_p, known.temperature = None, 0.0
    with pytest.raises(
        ValueError, match=r"refuses .* generation_config: `temperature` \(=0.0\) has to be a strictly pos"
    ):
        wrap()
    known.temperature, known.guidance_scale = 1.0, 0.0
    with pytest.raises(ValueError, match=r"cfg_scale must be >= 1, got 0\.0"):
        wrap()


def test_a_model_that_draws_no_images_is_one_sentence():
    with pytest.raises(ValueError, match=r"must be one of Chameleon.* to generate images, got Linear"):
        lantern.from_transformers(torch.nn.Linear(1, 1), None)
    with pytest.raises(ValueError, match="processor must be the model's, or its fast tokenizer, got NoneType"):
        lantern.from_transformers(make_tiny("janus")[0], None)


def test_the_example_gives_the_tokens_of_generate_in_fewer_forwards(tmp_path, monkeypatch, capsys):
    example = ROOT / "examples" / "jacobi_on_transformers.py"
    assert len(example.read_text().splitlines()) <= 100
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(example)])
    runpy.run_path(str(example), run_name="__main__")
    theirs, ours, equal = capsys.readouterr().out.splitlines()[:3]
    assert equal.split()[-1] == "True" and int(ours.split()[2]) < int(theirs.split()[3])
    assert (tmp_path / "image.png").is_file()


def test_pages_name_every_published_model_and_a_family_of_ones_own_is_the_row_they_show(tmp_path, monkeypatch):
    page, readme = ((ROOT / name).read_text() for name in ("docs/models.md", "README.md"))
    for name in ("anole-7b", "lumina-mgpt-7b", "janus-pro-1b", "janus-pro-7b", "emu3-gen", "glm-image"):
        (line,) = [line for line in page.splitlines() if line.startswith("|") and f"`{name}`" in line]
        assert f"| {CARDS[name].images.size} |" in line and line.endswith(f"| {CARDS[name].licence} |")
        overlay = line.split("|")[2].strip(" `")
        assert f"`{overlay}`" in readme and (ROOT / "experiments" / f"{overlay}.yaml").is_file()
    (code,) = [code for code in page.split("```")[1::2] if "def take_apart" in code]
    assert len(code.splitlines()) <= 34
    model, _ = make_tiny("emu3")
    save_words(tmp_path, "emu3")
    known = {"model": model, "tokenizer": PreTrainedTokenizerFast.from_pretrained(tmp_path)}
    monkeypatch.setitem(FAMILIES, "mine", None)  # gone when the test ends
    exec(code.removeprefix("python\n"), known)
    images = known["images"]
    expected = lantern.from_transformers(model, known["tokenizer"], family="mine", grid=4).generate(
        "a red cat", "autoregressive"
    )
    assert images.codes.shape == (1, 16) and torch.equal(images.codes, expected.codes)


def test_without_transformers_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_bytes(settings_of("janus"))
    save_file({"weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModuleNotFoundError, match=r"install it from a clone: pip install '\.\[transformers\]'"):
        read_target(tmp_path, TargetConfig(null_ids=(0,)), family="janus")


def test_a_folder_that_draws_no_images_is_one_sentence(tmp_path):
    save_file({"weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    for settings, words in (({"architectures": ["BertModel"]}, "got BertModel"), ({}, "names no class of")):
        (tmp_path / "config.json").write_text(json.dumps(settings))
        with pytest.raises(ValueError, match=words):
            lantern.load(tmp_path)
