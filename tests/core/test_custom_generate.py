"""Tests of `generate(custom_generate=lantern.custom_generate(...))` on the outputs of transformers' processors.

Tokens equal those of `generate` itself, or an error names the option that is not supported.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from types import ModuleType, SimpleNamespace

import pytest
import torch
from transformers import (
    DynamicCache,
    Emu3ForConditionalGeneration,
    LogitsProcessorList,
    MaxTimeCriteria,
    StoppingCriteriaList,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

import lantern
from helpers.paths import ROOT
from helpers.tiny_processors import make_emu3_processor, make_glm_processor, make_janus_processor
from helpers.tiny_transformers import NUM_CODES, make_tiny
from lantern.decoding import make_decoder
from lantern.methods import make_method
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels
from lantern_models.adapter import adapt, cache_name
from lantern_models.cards.published import CARDS

PROMPTS = ["a red fox in the snow", "cat"]
LONG = "low quality " * 9


@pytest.fixture(scope="module")
def emu3():
    return make_tiny("emu3")[0], make_emu3_processor()


@pytest.fixture(scope="module")
def glm():
    return make_tiny("glm_image")[0], make_glm_processor(start=NUM_CODES)


def emu3_inputs(processor, texts=PROMPTS, **options):
    options = {"image_area": 32 * 32, **options}  # 4 x 4 codes
    return processor(text=texts, padding=True, return_tensors="pt", return_for_image_generation=True, **options)


def constraint(model, processor, height, width):
    """Return the prefix function from the documentation of the class.

    It allows the codes and line ends of an image, and then the tokens that follow an image.
    """
    tokenizer, words = processor.tokenizer, model.model.vocabulary_mapping
    behind = [tokenizer.eof_token_id, tokenizer.eoi_token_id, tokenizer.eos_token_id]

    def allowed(_, ids):
        place = len(ids) - int((ids == tokenizer.image_wrapper_token_id).nonzero()[0])
        if place > height * (width + 1):
            place -= height * (width + 1) + 1
            return (torch.tensor([behind[place] if place < 3 else tokenizer.pad_token_id]),)
        return (torch.tensor([words.eol_token_id]),) if place % (width + 1) == 0 else words.image_tokens

    return allowed


NEGATIVES = ("none", "short", "longer", "a row each", "one row")


@pytest.mark.parametrize(
    ("negative", "ratio"),
    [
        *((negative, "2:1") for negative in NEGATIVES),
        *(("none", ratio) for ratio in ("1:1", "1:2")),
        *(pytest.param(name, ratio, marks=pytest.mark.slow) for name in NEGATIVES[1:] for ratio in ("1:1", "1:2")),
    ],
)
def test_emu3_draws_the_tokens_of_its_own_generate(emu3, negative, ratio):
    """The call of its documentation, with prompts of two lengths, and the next line, which makes pixels."""
    model, processor = emu3
    inputs = emu3_inputs(processor, ratio=ratio)
    height, width = inputs.pop("image_sizes")[0]
    texts = {"short": ["low"] * 2, "longer": [LONG] * 2, "a row each": [LONG, "a cat low"], "one row": [LONG]}
    options = {"max_new_tokens": 200, "do_sample": False, "guidance_scale": 3.0, "return_dict_in_generate": True}
    if negative != "none":
        found = processor(text=texts[negative], padding=True, return_tensors="pt")
        options |= {"negative_prompt_ids": found.input_ids, "negative_prompt_attention_mask": found.attention_mask}
    allowed = constraint(model, processor, height, width)
    own = {name: value.expand(2, -1) for name, value in options.items() if name.startswith("negative")}
    theirs = model.generate(**inputs, prefix_allowed_tokens_fn=allowed, **{**options, **own})
    for more in ({}, {"prefix_allowed_tokens_fn": allowed}):
        found = model.generate(**inputs, custom_generate=lantern.custom_generate("jacobi"), **options, **more)
        assert torch.equal(found.sequences, theirs.sequences)
    drawn = found.sequences[:, inputs.input_ids.shape[1] :]
    assert drawn.shape[1] == height * (width + 1) + 3 and (height == width) == (ratio == "1:1")
    pixels = model.decode_image_tokens(image_tokens=drawn, height=height, width=width)
    assert pixels.shape[-2:] == (2 * height, 2 * width)


def test_emu3_draws_with_what_its_processor_gives_as_it_stands(emu3):
    """The inputs include sizes, which transformers ignores, and no limit of tokens."""
    model, processor = emu3
    inputs = emu3_inputs(processor)
    drawn = []
    for method, seed in (("jacobi", 0), ("autoregressive", 0), ("jacobi", 1)):
        torch.manual_seed(seed)
        drawn.append(model.generate(**inputs, do_sample=True, custom_generate=lantern.custom_generate(method)))
    assert drawn[0].shape == (2, inputs.input_ids.shape[1] + 4 * 5 + 3)
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    options = {"do_sample": True, "num_return_sequences": 2}
    whole = {"do_sample": False, "custom_generate": lantern.custom_generate()}
    found, cut = (model.generate(**inputs, max_new_tokens=number, **whole) for number in (99, 21))
    assert torch.equal(found[:, : inputs.input_ids.shape[1] + 21], cut)
    several = model.generate(**inputs, custom_generate=lantern.custom_generate(), **options)
    assert len(several) == 4 and not torch.equal(several[0], several[1])


def test_autocast_around_generate_changes_no_token(emu3):
    model, processor = emu3
    options = {**emu3_inputs(processor), "do_sample": True, "top_k": 5}
    expected = model.generate(**options, custom_generate=lantern.custom_generate(seed=1))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model.generate(**options, custom_generate=lantern.custom_generate(seed=1)), expected)


@pytest.mark.parametrize(
    ("height", "width"),
    [(96, 160), pytest.param(96, 96, marks=pytest.mark.slow), pytest.param(160, 96, marks=pytest.mark.slow)],
)
def test_glm_image_draws_the_tokens_of_its_own_generate(glm, height, width):
    model, processor = glm
    inputs = processor(text=PROMPTS, padding=True, return_tensors="pt", target_h=height, target_w=width)
    tokens = int(inputs["image_grid_thw"][:2].prod(1).sum())
    options = {"max_new_tokens": tokens, "do_sample": False}
    stop = {"min_new_tokens": tokens, "suppress_tokens": [NUM_CODES, NUM_CODES + 1]}
    theirs = model.generate(**inputs, **options, **stop)
    ours = model.generate(**inputs, **options, custom_generate=lantern.custom_generate("jacobi"))
    assert torch.equal(ours, theirs)


def test_filters_are_read_from_the_processors_in_whatever_way_they_came(emu3):
    """A user's top-k without one in the config gives the tokens of the same top-k in the config."""
    model, processor = emu3
    inputs, drawn = emu3_inputs(processor), []
    for options in ({"top_k": 3}, {"top_k": 0, "logits_processor": LogitsProcessorList([TopKLogitsWarper(3)])}, {}):
        decode = lantern.custom_generate("jacobi", seed=0)
        drawn.append(model.generate(**inputs, do_sample=True, custom_generate=decode, **options))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_chameleon_which_cannot_draw_itself_draws_within_generate():
    """A square of codes with a negative prompt, compared with a decoder that is built by hand."""
    model, grids = make_tiny("anole")
    ids, negative = torch.tensor([[31, 10, 12, 9], [31, 31, 11, 9]]), torch.tensor([[31, 9]])
    options = {"negative_prompt_ids": negative, "guidance_scale": 3.0, "do_sample": False}
    found = model.generate(ids, custom_generate=lantern.custom_generate(family="anole", grid=4), **options)
    target = adapt(model, "anole", num_text_tokens=4, null_ids=(31, 9), **grids)
    decoder = make_decoder(DecodingModels(target), make_method("autoregressive"), SamplingConfig(0.0, cfg_scale=3.0))
    codes = decoder.generate(ids, torch.ones_like(ids).bool(), [decoder.make_noise(0, str(row)) for row in "ab"]).codes
    assert torch.equal(found[:, 4:], codes + 4)


def leave_out(allowed, token):
    return lambda row, ids: [id for id in allowed(row, ids) if id != token]


REFUSED = {
    "repetition_penalty": ({"repetition_penalty": 1.3}, "got RepetitionPenaltyLogitsProcessor too"),
    "suppress_tokens": ({"suppress_tokens": [41]}, "got SuppressTokensLogitsProcessor too"),
    "min_p": ({"do_sample": True, "min_p": 0.1}, "got MinPLogitsWarper too"),
    "a user's own": ({"logits_processor": LogitsProcessorList([lambda ids, scores: scores])}, "got function too"),
    "twice": (
        {"do_sample": True, "logits_processor": LogitsProcessorList([TopKLogitsWarper(3)])},
        "one of each kind, in the order .*, got TopKLogitsWarper, TopKLogitsWarper",
    ),
    "least": (
        {
            "do_sample": True,
            "top_k": 0,
            "logits_processor": LogitsProcessorList([TopPLogitsWarper(0.5, min_tokens_to_keep=2)]),
        },
        "min_tokens_to_keep must be 1",
    ),
    "num_beams": ({"num_beams": 2}, "got beam_search with num_beams=2"),
    "prompt_lookup": ({"prompt_lookup_num_tokens": 3}, "got assisted_generation with num_beams=1"),
    "scores": ({"output_scores": True, "return_dict_in_generate": True}, "output_scores is not returned"),
    "max_time": ({"stopping_criteria": StoppingCriteriaList([MaxTimeCriteria(9)])}, "criterion MaxTimeCriteria; leave"),
    "max_new_tokens": ({"max_new_tokens": 19}, "max_new_tokens must be >= 20, the tokens of an image, got 19"),
    "guidance_scale": ({"guidance_scale": 0.5}, "cfg_scale must be >= 1, got 0.5"),
    "negative rows": (
        {"guidance_scale": 3.0, "negative_prompt_ids": torch.ones(3, 4, dtype=torch.int64)},
        "negative_prompt_ids must have 1 row or 2, one of each prompt, got 3",
    ),
    "negative mask": (
        {
            "guidance_scale": 3.0,
            "negative_prompt_ids": torch.ones(2, 2, dtype=torch.int64),
            "negative_prompt_attention_mask": torch.tensor([[1, 0]] * 2),
        },
        "negative_prompt_attention_mask must be the mask of prompts padded on the left",
    ),
}


REFUSED["negative mask of nothing"] = (
    {
        "guidance_scale": 3.0,
        "negative_prompt_ids": torch.ones(2, 2, dtype=torch.int64),
        "negative_prompt_attention_mask": torch.tensor([[0, 1], [0, 0]]),
    },
    "negative_prompt_attention_mask must be the mask of prompts padded on the left",
)


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_change_the_tokens_is_refused_by_its_name(emu3, name):
    model, processor = emu3
    options, sentence = REFUSED[name]
    with pytest.raises(ValueError, match=sentence):
        model.generate(**emu3_inputs(processor), custom_generate=lantern.custom_generate(), **options)


@pytest.mark.parametrize("options", [{"suppress_tokens": []}, {"begin_suppress_tokens": []}, {"min_p": 0.0}])
def test_what_changes_no_token_is_accepted(emu3, options):
    model, processor = emu3
    decode = {"custom_generate": lantern.custom_generate(seed=0), "do_sample": True}
    expected = model.generate(**emu3_inputs(processor), **decode)
    assert torch.equal(model.generate(**emu3_inputs(processor), **decode, **options), expected)


def test_a_top_p_of_zero_takes_the_most_probable_token(emu3):
    model, processor = emu3
    inputs, decode = emu3_inputs(processor), {"custom_generate": lantern.custom_generate()}
    found = model.generate(**inputs, do_sample=True, top_p=0.0, **decode)
    assert torch.equal(found, model.generate(**inputs, do_sample=False, **decode))


@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated")  # the caller, not Lantern, uses the old name
@pytest.mark.parametrize("name", {"past_key_values", cache_name(Emu3ForConditionalGeneration.forward)})
def test_a_filled_cache_is_refused_under_each_name(emu3, name):
    model, inputs = emu3[0], emu3_inputs(emu3[1])
    full, row = DynamicCache(), torch.zeros(2, 2, 3, 16)
    full.update(row, row, 0)
    with pytest.raises(ValueError, match=r"the cache in \w+ must be empty under lantern.custom_generate"):
        model.generate(**inputs, custom_generate=lantern.custom_generate(), **{name: full})


def test_sizes_and_prefixes_of_emu3_that_do_not_fit_are_refused(emu3):
    model, processor = emu3
    square, wide = emu3_inputs(processor), emu3_inputs(processor, ratio="2:1")
    decode, every_code = lantern.custom_generate(), model.model.vocabulary_mapping.image_tokens
    for allowed in (
        constraint(model, processor, 3, 6),
        leave_out(constraint(model, processor, 4, 4), 47),
        lambda row, ids: [*range(40, 60), 6],
        lambda row, ids: None,
        # Codes at the first token, and no result after it.
        lambda row, ids: every_code if len(ids) == square.input_ids.shape[1] else None,
    ):
        with pytest.raises(ValueError, match="prefix_allowed_tokens_fn must allow the image of 4 x 4 codes"):
            model.generate(**square, custom_generate=decode, prefix_allowed_tokens_fn=allowed)
    mixed = {name: torch.cat([square[name][:1], wide[name][:1]]) for name in ("input_ids", "attention_mask")}
    with pytest.raises(ValueError, match=r"one size, got \[\(3, 6\), \(4, 4\)\] \(height, width\)"):
        model.generate(**mixed, custom_generate=decode)
    with pytest.raises(ValueError, match=r"do not say the image's size: pass lantern.custom_generate\(grid="):
        model.generate(**processor(text=["cat"], return_tensors="pt"), custom_generate=decode)
    for grid in ("4", (4,), (4, 0), 2.0):
        with pytest.raises(ValueError, match=r"grid must be an integer >= 1, or a pair .height, width. of them, got"):
            lantern.custom_generate(grid=grid)
    right = {"input_ids": square.input_ids.flip(1), "attention_mask": square.attention_mask.flip(1)}
    with pytest.raises(ValueError, match="attention_mask must be the mask of prompts padded on the left"):
        model.generate(**right, custom_generate=decode)


def test_a_k_that_the_codebook_does_not_allow_is_refused(emu3):
    model, processor = emu3
    decode = lantern.custom_generate("lantern", drafts="jacobi", tree="chain2", k=NUM_CODES, delta=0.1)
    with pytest.raises(ValueError, match=rf"k must be in \[1, {NUM_CODES - 1}\] for a codebook of .* got {NUM_CODES}"):
        model.generate(**emu3_inputs(processor), custom_generate=decode)


def test_sizes_and_pictures_of_glm_image_that_do_not_fit_are_refused(glm):
    model, processor = glm
    inputs = processor(text=PROMPTS, padding=True, return_tensors="pt", target_h=96, target_w=96)
    one = processor(text=PROMPTS[:1], return_tensors="pt", target_h=96, target_w=96)
    grids, codes = inputs["image_grid_thw"], torch.tensor([[NUM_CODES, 3, 4, NUM_CODES + 1]])
    source = {"input_ids": torch.cat([codes, one["input_ids"]], dim=1), "image_grid_thw": grids[:2]}
    decode = lantern.custom_generate()
    for changed, sentence in (
        ({"image_grid_thw": None}, "image_grid_thw is missing: pass all outputs of the processor"),
        ({"image_grid_thw": torch.cat([grids[:2], grids[:2] + 1])}, "must be the same of all prompts, got"),
        ({"image_grid_thw": grids[:3], "images_per_sample": torch.tensor([1, 2])}, "must hold 2 grids of each"),
        ({"image_grid_thw": grids, "images_per_sample": torch.tensor([3, 1])}, "must hold 2 grids of each prompt"),
        ({"images_per_sample": torch.tensor([2, 1])}, "must hold 2 grids of each prompt"),
        ({"guidance_scale": 3.0}, "generates without guidance: guidance_scale must be 1, got 3.0"),
        ({"num_return_sequences": 2, "do_sample": True}, "num_return_sequences of Glm.* must be 1, got 2"),
        (
            {**source, "attention_mask": None, "images_per_sample": None},
            r"have \[2\] codes in the prompts, got grids of \[9\]",
        ),
    ):
        options = {name: value for name, value in ({**inputs} | changed).items() if value is not None}
        with pytest.raises(ValueError, match=sentence):
            model.generate(**options, custom_generate=decode)
    with pytest.raises(ValueError, match="grid of GlmImageForConditionalGeneration is in image_grid_thw, got"):
        model.generate(**inputs, custom_generate=lantern.custom_generate(grid=3))


def test_a_class_whose_codes_are_no_words_is_sent_to_from_transformers():
    model, _ = make_tiny("janus")
    with pytest.raises(ValueError, match="JanusForConditionalGeneration are not words: use lantern"):
        model.generate(torch.ones(1, 4, dtype=torch.int64), custom_generate=lantern.custom_generate(grid=4))
    with pytest.raises(ValueError, match="preset must be one of"):
        lantern.custom_generate("jakobi")


def block_of(page, words):
    """Return the only Python block of a page that contains these words."""
    (code,) = [code for code in page.split("```")[1::2] if code.startswith("python") and words in code]
    return code.removeprefix("python\n")


PAGE = (ROOT / "docs" / "models.md").read_text()


def test_the_pages_lines_for_emu3_make_pixels(emu3):
    model, processor = emu3
    known = {"model": model, "processor": partial(processor, image_area=32 * 32), "lantern": lantern}
    exec(block_of(PAGE, "decode_image_tokens"), known)
    assert known["pixels"].shape[-2:] == (8, 8) and known["height"] == 4


def test_the_pages_line_for_every_class_draws_glm_image_too(glm):
    model, processor = glm
    inputs = processor(text=PROMPTS, padding=True, return_tensors="pt", target_h=96, target_w=64)
    (line,) = {line for line in PAGE.split("`") if "custom_generate(" in line and line.startswith("model.gen")}
    found = eval(line, {"model": model, "inputs": inputs, "lantern": lantern})
    assert found.shape[1] - inputs["input_ids"].shape[1] == 3 * 2 + 19 * 13 and found[:, -6:].max() < NUM_CODES


def test_the_pages_lines_for_diffusers_pipeline_of_glm_image_hand_it_a_large_grid(glm, monkeypatch):
    calls = []

    class Pipeline:
        """Stand-in for the pipeline of diffusers, with the parts that the page uses. It keeps its arguments."""

        device = "cpu"
        vision_language_encoder, processor = glm

        @classmethod
        def from_pretrained(cls, name, **_):
            return cls()

        def __call__(self, prompt, **options):
            calls.append(options)
            return SimpleNamespace(images=["picture"])

    diffusers = ModuleType("diffusers")
    diffusers.GlmImagePipeline = Pipeline
    monkeypatch.setitem(sys.modules, "diffusers", diffusers)
    known = {}
    exec(block_of((ROOT / "docs" / "one_gpu.md").read_text(), "GlmImagePipeline"), known)
    assert (calls[0]["height"], calls[0]["width"]) == (1152, 768)
    prior, codes = calls[0]["prior_token_ids"].view(72, 48), known["images"].codes
    assert known["image"] == "picture" and codes.shape == (1, 19 * 13 + 36 * 24)
    assert torch.equal(prior[::2, 1::2].flatten(), codes[0, 19 * 13 :].long())


def test_a_prompt_of_one_token_is_enough(emu3):
    model, _ = emu3
    found = model.generate(torch.tensor([[7]]), do_sample=False, custom_generate=lantern.custom_generate(grid=4))
    assert found.shape[1] > 16


def test_the_lines_for_janus_on_one_gpu_generate_an_image(tmp_path, monkeypatch):
    (model, _), processor = make_tiny("janus"), make_janus_processor()
    kinds = {"JanusForConditionalGeneration": model, "AutoProcessor": processor}
    for name, loaded in kinds.items():
        known = {"from_pretrained": classmethod(lambda cls, name, loaded=loaded, **_: loaded)}
        monkeypatch.setattr(f"transformers.{name}", type(name, (), known))
    card = CARDS["janus-pro-1b"]
    monkeypatch.setitem(CARDS, "janus-pro-1b", replace(card, images=replace(card.images, grid=4)))
    monkeypatch.chdir(tmp_path)
    names = {}
    code = block_of((ROOT / "docs" / "one_gpu.md").read_text(), "JanusForConditionalGeneration")
    exec(code.replace('"cuda"', '"cpu"'), names)
    assert names["images"].codes.shape == (1, 16) and (tmp_path / "fox.png").is_file()


def test_the_lines_of_the_first_page_generate_an_image(tmp_path, monkeypatch, capsys):
    (model, _), processor = make_tiny("janus"), make_janus_processor()
    card = CARDS["janus-pro-1b"]
    monkeypatch.setitem(CARDS, "janus-pro-1b", replace(card, images=replace(card.images, grid=4)))
    monkeypatch.chdir(tmp_path)
    names = {"model": model, "processor": processor}
    exec(block_of((ROOT / "docs" / "index.md").read_text(), "from_transformers"), names)
    expected = names["fast"].generate("a red fox in the snow", method="autoregressive")
    assert torch.equal(names["images"].codes, expected.codes) and (tmp_path / "fox.png").is_file()
    assert capsys.readouterr().out


def test_janus_draws_the_tokens_of_its_own_generate_on_its_processors_prompt():
    (model, _), processor = make_tiny("janus"), make_janus_processor()
    wrapped = lantern.from_transformers(model, processor, grid=4)
    prompts = [f"<|User|>: {text}\n\n<|Assistant|>:" for text in PROMPTS]
    for prompt, text in zip(prompts, PROMPTS, strict=True):
        inputs = processor(text=[prompt], generation_mode="image", return_tensors="pt")
        theirs = model.generate(**inputs, generation_mode="image", do_sample=False, guidance_scale=5.0)
        assert torch.equal(wrapped.generate(text, temperature=0.0).codes.long(), theirs)
