"""Source pictures of GLM-Image: tokens are those of its own `generate`."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import lantern
from helpers.paths import ROOT
from helpers.tiny_processors import make_emu3_processor, make_glm_processor, make_janus_processor
from helpers.tiny_transformers import NUM_CODES, make_tiny
from lantern.sampling import SamplingConfig
from lantern_models.glm_image import place_sources

SIZE = (96, 64)  # of the target, in pixels: 3 x 2 codes
PROMPTS = ["a red fox in the snow", "cat", "the low snow"]


def make_picture(height: int, width: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


WIDE, TALL, OTHER = make_picture(96, 160), make_picture(128, 64), make_picture(64, 96, seed=1)  # 3 x 5, 4 x 2, 2 x 3
SOURCES = {"one": [WIDE], "two": [TALL, WIDE]}


@pytest.fixture(scope="module")
def glm():
    return make_tiny("glm_image")[0], make_glm_processor(start=NUM_CODES)


def make_inputs(processor, texts, pictures):
    """Make what the class's processor returns for prompts that begin with their source pictures.

    Args:
        processor: the processor.
        texts: a text per prompt.
        pictures: a list of pictures per prompt.
    """
    places = "<bos><|image|><eoi>" * len(pictures[0])
    size = {"target_h": SIZE[0], "target_w": SIZE[1]}
    every = [picture for row in pictures for picture in row]
    return processor(text=[places + text for text in texts], images=every, padding=True, return_tensors="pt", **size)


def own_sequences(model, inputs):
    """Greedy sequences of the class's own `generate`."""
    num = int(inputs["image_grid_thw"][-1].prod())
    stop = {"max_new_tokens": num, "min_new_tokens": num, "suppress_tokens": [NUM_CODES, NUM_CODES + 1]}
    return model.generate(**inputs, do_sample=False, **stop)


BATCHES = {
    "one": ([PROMPTS[0]], [[WIDE]]),
    "two": ([PROMPTS[0]], [[TALL, WIDE]]),
    "a batch of one each": (PROMPTS, [[WIDE], [TALL], [OTHER]]),
    "a batch of two each": (PROMPTS[:2], [[TALL, WIDE], [OTHER, TALL]]),
}


@pytest.mark.parametrize("batch", BATCHES)
def test_within_generate_tokens_are_those_of_the_class(glm, batch):
    """Sources of other shapes than the target. In a batch, prompts have other lengths, and sources other shapes."""
    model, processor = glm
    inputs = make_inputs(processor, *BATCHES[batch])
    theirs = own_sequences(model, inputs)
    ours = model.generate(**inputs, do_sample=False, custom_generate=lantern.custom_generate("jacobi"))
    assert torch.equal(ours, theirs) and ours.shape[1] == inputs["input_ids"].shape[1] + 6


@pytest.mark.parametrize("batch", ["two", "a batch of one each"])
def test_sampled_jacobi_equals_one_by_one_decoding_within_generate(glm, batch):
    model, processor = glm
    inputs, drawn = make_inputs(processor, *BATCHES[batch]), []
    for method in ("autoregressive", "jacobi"):
        decode = lantern.custom_generate(method, seed=3)
        drawn.append(model.generate(**inputs, do_sample=True, custom_generate=decode))
    assert torch.equal(*drawn)


def test_codes_in_place_of_the_placeholders_are_a_source_too(glm):
    """A prompt may hold a source's codes, which the model then need not compute."""
    model, processor = glm
    inputs = make_inputs(processor, PROMPTS[:1], [[WIDE]])
    expected = own_sequences(model, inputs)[:, -6:]
    ids, pixels = inputs["input_ids"].clone(), inputs.pop("pixel_values")
    found = model.get_image_features(pixels, inputs["image_grid_thw"][:-1], return_dict=True)
    ids[ids == model.config.image_token_id] = model.get_image_tokens(found.pooler_output)
    inputs["input_ids"] = ids
    ours = model.generate(**inputs, do_sample=False, custom_generate=lantern.custom_generate())
    assert torch.equal(ours[:, -6:], expected)


@pytest.mark.parametrize("sources", SOURCES)
def test_generate_takes_source_pictures(glm, sources):
    """Greedy tokens are those of the class. Sampled ones are those of one-by-one decoding, also with refilled rows."""
    model, processor = glm
    wrapped, pictures = lantern.from_transformers(model, processor, grid=4), SOURCES[sources]
    images = wrapped.generate(PROMPTS, images=pictures, size=SIZE, temperature=0.0)
    for text, codes in zip(PROMPTS, images.codes, strict=True):
        assert torch.equal(codes.long(), own_sequences(model, make_inputs(processor, [text], [pictures]))[0, -6:])
    assert images.grids.shape == (3, 3, 2) and images.pixels.shape == (3, *SIZE, 3)
    drawn = [
        wrapped.generate(PROMPTS, method, images=pictures, size=SIZE, seed=1, num_images=2, batch_size=size)
        for method, size in (("autoregressive", 6), ("jacobi", 2))
    ]
    assert torch.equal(drawn[0].codes, drawn[1].codes)
    assert drawn[0].codes.shape == (6, 6) and drawn[1].steps.sum() < drawn[0].steps.sum()


def test_the_target_of_an_edit_has_the_models_own_size_by_default(glm):
    wrapped = lantern.from_transformers(*glm, grid=4)
    edited = wrapped.generate("cat", images=[WIDE], with_log_probs=True)
    assert edited.codes.shape == (1, 16) and edited.log_probs.shape == (1, 16)
    assert wrapped.generate("cat").codes.shape[1] > 256  # the small grid comes first without a source


def test_log_probs_are_those_of_the_class(glm):
    model, processor = glm
    wrapped = lantern.from_transformers(model, processor, grid=4)
    wrapped.sampling = SamplingConfig(top_k=0)
    images = wrapped.generate("cat", images=[TALL], size=SIZE, with_log_probs=True)
    inputs = make_inputs(processor, ["cat"], [[TALL]])
    num = inputs["input_ids"].shape[1]
    found = model.generate(
        **inputs,
        max_new_tokens=6,
        min_new_tokens=6,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        prefix_allowed_tokens_fn=lambda _, ids: [int(images.codes[0, len(ids) - num])],
    )
    log_probs = torch.cat(found.logits)[:, :NUM_CODES].log_softmax(-1)
    expected = log_probs.gather(1, images.codes.long().T)[:, 0]
    torch.testing.assert_close(images.log_probs[0], expected, atol=1e-4, rtol=0)


def test_codes_replace_placeholders_and_the_image_begins_after_the_padded_prompt(glm):
    model, processor = glm
    inputs = make_inputs(processor, PROMPTS[:2], [[OTHER, WIDE], [OTHER, TALL]])
    ids, mask = inputs["input_ids"], inputs["attention_mask"].bool()
    is_place = ids == model.config.image_token_id
    codes = torch.arange(int(is_place.sum())) % NUM_CODES
    prompts = place_sources(model, ids, mask, inputs["image_grid_thw"], inputs["images_per_sample"], codes)
    assert prompts.shape == (*ids.shape, 4) and torch.equal(prompts[..., 0][is_place], codes)
    assert (prompts[:, -1, 1:] == ids.shape[1] - 1).all()


def test_models_that_take_no_source_pictures_are_one_sentence(glm):
    model, processor = glm
    of_words = lantern.from_transformers(model, processor.tokenizer, grid=4)
    janus = lantern.from_transformers(make_tiny("janus")[0], make_janus_processor(), grid=4)
    emu3 = lantern.from_transformers(make_tiny("emu3")[0], make_emu3_processor(), grid=4)
    for other in (of_words, janus, emu3, lantern.load("embedded")):
        with pytest.raises(ValueError, match=r"images, source pictures, need GLM-Image .* processor, got a model of"):
            other.generate("cat", images=[WIDE])
    for wrong in ([], WIDE, "picture.png"):
        with pytest.raises(ValueError, match="images must be a list of one or more source pictures, got"):
            lantern.from_transformers(model, processor, grid=4).generate("cat", images=wrong)


def test_each_prompt_may_have_its_own_source_pictures(glm):
    """Also of different numbers, and for two prompts of one text."""
    wrapped = lantern.from_transformers(*glm, grid=4)
    prompts, pictures = [*PROMPTS, "cat"], [[WIDE], (TALL,), [OTHER, TALL], [OTHER]]
    found = wrapped.generate(prompts, images=pictures, temperature=0.0, size=SIZE, batch_size=2)
    for text, row, codes in zip(prompts, pictures, found.codes, strict=True):
        assert torch.equal(wrapped.generate(text, images=row, temperature=0.0, size=SIZE).codes[0], codes)
    assert torch.equal(wrapped.generate("cat", images=[[OTHER]], temperature=0.0, size=SIZE).codes, found.codes[3:])
    several = {"seed": 1, "num_images": 2, "size": SIZE, "with_log_probs": True}
    drawn = [wrapped.generate(prompts, name, images=pictures, **several) for name in ("autoregressive", "jacobi")]
    assert torch.equal(drawn[0].codes, drawn[1].codes) and drawn[0].log_probs.shape == (8, 6)


ARRAY = np.asarray(WIDE)


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        ([[WIDE]], r"or 3 lists of one or more, one for each prompt, got 1 entries of lengths \[1\]"),
        ([[WIDE]] * 4, r"got 4 entries of lengths \[1, 1, 1, 1\]"),
        ([[WIDE], [], [TALL]], r"got 3 entries of lengths \[1, 0, 1\]"),
        ([WIDE, [TALL], OTHER], r"got 3 entries of lengths \['no list', 1, 'no list'\]"),
        ([[[WIDE]], [[WIDE]], [[WIDE]]], "must be one picture, got list of several"),
        ([np.stack([ARRAY, ARRAY])], "must be one picture, got ndarray of several"),
        (np.stack([ARRAY] * 3), "images must be a list of one or more source pictures, got"),
        ({"image": WIDE}, "images must be a list of one or more source pictures, got"),
        (
            [WIDE, make_picture(64, 400)],
            r"^source picture 1 of the prompt 'a red .* size=400x64.*ratio must be smaller",
        ),
        ([WIDE, None], "^source picture 1 of the prompt 'a red fox in the snow' must be a picture .* got None: "),
        ([WIDE, "nowhere.png"], "^source picture 1 of the prompt .* got 'nowhere.png': "),
        ([[WIDE], [OTHER], [TALL, 5]], "^source picture 1 of the prompt 'the low snow' must be .* got 5: "),
    ],
)
def test_source_pictures_of_another_form_are_one_sentence(glm, images, sentence):
    with pytest.raises(ValueError, match=sentence):
        lantern.from_transformers(*glm, grid=4).generate(PROMPTS, images=images)


def test_source_pictures_within_generate_that_do_not_fit_are_refused(glm):
    model, processor = glm
    inputs, decode = make_inputs(processor, PROMPTS[:2], [[WIDE], [TALL]]), lantern.custom_generate()
    grids, counts, ids = inputs["image_grid_thw"], inputs["images_per_sample"], inputs["input_ids"]
    pixels = inputs.pop("pixel_values")
    inputs["mm_encoder_outputs"] = {"image": model.get_image_features(pixels, grids, counts, return_dict=True)}
    no_place = ids.masked_fill(ids == NUM_CODES + 1, 71)
    fewer = ids.clone()
    fewer[1] = fewer[1].masked_fill(fewer[1] == NUM_CODES + 1, 71)
    for changed, sentence in (
        ({"image_grid_thw": grids[[0, 1, 2, 0]]}, "must be the same of all prompts, got"),
        ({"image_grid_thw": grids[[2, 1, 0, 3]]}, r"have \[15, 8\] codes in the prompts, got grids of \[8, 15\]"),
        ({"images_per_sample": counts + 1}, "must hold 2 grids of each prompt, 1 of source pictures and the image's"),
        ({"mm_encoder_outputs": None}, "have 23 placeholders of source pictures, .* got the codes of 0"),
        ({"input_ids": no_place}, "must be between the tokens 20 and 21 in each prompt, got no such tokens"),
        ({"input_ids": no_place.masked_fill(no_place == 60, 71)}, "must be between the tokens 20 and 21"),
        ({"input_ids": fewer}, r"the same number of source pictures, got \[1, 0\]"),
    ):
        options = {name: value for name, value in ({**inputs} | changed).items() if value is not None}
        with pytest.raises(ValueError, match=sentence):
            model.generate(**options, custom_generate=decode)
    emu3, words = make_tiny("emu3")[0], make_emu3_processor()
    plain = words(text=["cat"], return_tensors="pt", return_for_image_generation=True, image_area=32 * 32)
    with pytest.raises(ValueError, match="pixel_values, a source picture, are supported for GLM-Image only"):
        emu3.generate(**plain, mm_encoder_outputs={"image": object()}, custom_generate=decode)


def block_of(page: str, words: str) -> str:
    """Return the only Python block of a page that contains these words."""
    (code,) = [code for code in (ROOT / page).read_text().split("```")[1::2] if words in code]
    return code.removeprefix("python\n")


def test_the_library_pages_lines_edit_a_picture(glm, monkeypatch, tmp_path):
    for name, loaded in zip(("GlmImageForConditionalGeneration", "AutoProcessor"), glm, strict=True):
        known = {"from_pretrained": classmethod(lambda cls, name, loaded=loaded, **_: loaded)}
        monkeypatch.setattr(f"transformers.{name}", type(name, (), known))
    TALL.save(tmp_path / "fox.png")
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(block_of("docs/library.md", "fox.png"), names)
    assert names["images"].grids.shape == (1, 36, 24) and names["images"].codes.shape == (1, 36 * 24)


def test_the_models_pages_lines_let_the_pipeline_of_diffusers_call_lantern(glm, monkeypatch):
    model, processor = glm
    monkeypatch.setattr(model, "generate", model.generate)  # put back when the test ends
    seen = []

    class Pipeline(SimpleNamespace):
        """Stand-in for the pipeline of diffusers: it calls `generate` as the pipeline does, with 3 x 2 codes."""

        def __call__(self, prompt, image, height, width):
            inputs = make_inputs(processor, [prompt], [image])
            seen.append((inputs["input_ids"].shape[1] + 6, height, width))
            ids = self.vision_language_encoder.generate(**inputs, max_new_tokens=7, do_sample=True)
            return SimpleNamespace(images=[ids])

    known = {"pipeline": Pipeline(vision_language_encoder=model), "source": WIDE, "lantern": lantern}
    exec(block_of("docs/models.md", "encoder.generate"), known)
    assert seen == [(known["image"].shape[1], 1152, 768)] and known["image"][0, -6:].max() < NUM_CODES
