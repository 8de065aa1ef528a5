"""Images of any height and width: tokens are those of the model's own `generate`, and pixels have the same shape."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import lantern
from helpers.tiny_models import generate, make_models
from helpers.tiny_processors import make_emu3_processor, make_glm_processor, make_janus_processor
from helpers.tiny_transformers import NUM_CODES, make_tiny
from lantern.methods import make_method
from lantern.models.config import TargetConfig
from lantern_models.families import FAMILIES
from lantern_models.sizes import shape_fields
from lantern_pipeline.cli_sample import draw_samples, sample_prompt

PROMPTS = ["a red fox in the snow", "cat", "the low snow"]
PROCESSORS = {
    "janus": make_janus_processor,
    "emu3": make_emu3_processor,
    "glm_image": lambda: make_glm_processor(start=NUM_CODES),
}
PIXELS = {"janus": 2, "emu3": 2, "glm_image": 32}  # side of a code
# A square, wide and tall images. Janus' own `generate` makes 16 tokens, in whatever shape.
CASES = [("emu3", (4, 4)), ("janus", (2, 8)), ("emu3", (2, 6)), ("glm_image", (2, 6)), ("glm_image", (6, 2))]


@pytest.fixture(scope="module")
def tiny():
    return {family: (make_tiny(family)[0], make()) for family, make in PROCESSORS.items()}


@pytest.fixture
def few_codes(monkeypatch):
    """GLM-Image with about 16 codes in its smaller image, not 256."""
    family = FAMILIES["glm_image"]
    monkeypatch.setitem(FAMILIES, "glm_image", replace(family, target={**family.target, "small_grid": 4}))


def codes_of_janus(model, ids, **options):
    return model.generate(ids, generation_mode="image", guidance_scale=5.0, **options)


def codes_of_emu3(model, ids, null_ids, shape, **options):
    """Its documentation's call: a negative prompt, and a function that allows an image of the shape only."""
    width = shape[1] + 1

    def allowed(_, sequence):
        place = len(sequence) - ids.shape[1]
        return [6] if place % width == shape[1] else list(range(40, 40 + NUM_CODES))

    options |= {"negative_prompt_ids": torch.tensor([null_ids]), "guidance_scale": 3.0}
    options |= {"max_new_tokens": shape[0] * width, "min_new_tokens": shape[0] * width}
    tokens = model.generate(ids, prefix_allowed_tokens_fn=allowed, **options)[:, ids.shape[1] :]
    return torch.where(tokens == 6, NUM_CODES, tokens - 40)


def codes_of_glm_image(model, ids, shape, **options):
    small = FAMILIES["glm_image"].small_shape(shape)
    num = small[0] * small[1] + shape[0] * shape[1]
    options |= {"image_grid_thw": torch.tensor([[1, *shape], [1, *small]]), "images_per_sample": torch.tensor([2])}
    options |= {"max_new_tokens": num, "min_new_tokens": num, "suppress_tokens": [NUM_CODES, NUM_CODES + 1]}
    return model.generate(ids, **options)[:, ids.shape[1] :]


def own_tokens(model, family, wrapped, text, shape):
    """Greedy tokens of the class's own `generate` for one prompt, numbered as Lantern's."""
    ids, mask = wrapped.encoder.encode([text])
    ids = ids[mask][None]
    options = {"attention_mask": torch.ones_like(ids), "do_sample": False}
    if family == "janus":
        return codes_of_janus(model, ids, **options)
    if family == "emu3":
        return codes_of_emu3(model, ids, wrapped.encoder.null_prompt["null_ids"], shape, **options)
    return codes_of_glm_image(model, ids, shape, **options)


@pytest.mark.parametrize(("family", "shape"), CASES)
def test_greedy_tokens_are_those_of_the_class_and_pixels_have_the_shape(tiny, few_codes, family, shape):
    model, processor = tiny[family]
    wrapped = lantern.from_transformers(model, processor, grid=shape)
    expected = torch.cat([own_tokens(model, family, wrapped, text, shape) for text in PROMPTS])
    height, width = (side * PIXELS[family] for side in shape)
    for texts in (PROMPTS[:1], PROMPTS):
        images = wrapped.generate(texts, method="jacobi", temperature=0.0)
        assert torch.equal(images.codes.long(), expected[: len(texts)])
        assert images.pixels.shape == (len(texts), height, width, 3)
    lines = expected[:, -shape[0] * (shape[1] + (family == "emu3")) :].view(len(PROMPTS), shape[0], -1)
    assert torch.equal(images.grids.long(), lines[..., : shape[1]])


@pytest.mark.parametrize(("family", "shape"), CASES)
def test_sampled_jacobi_equals_one_by_one_decoding(tiny, few_codes, family, shape):
    wrapped = lantern.from_transformers(*tiny[family], grid=shape)
    options = {"seed": 2, "temperature": 1.0}
    images, expected = (wrapped.generate(PROMPTS, method, **options) for method in ("jacobi", "autoregressive"))
    assert torch.equal(images.codes, expected.codes) and (images.pixels == expected.pixels).all()
    assert images.steps.sum() < expected.steps.sum()


@pytest.mark.parametrize("shape", [(4, 4), (2, 6)])
def test_chameleon_generates_any_shape_within_generate(shape):
    """It has no generation of its own: greedy tokens are the best ones under its logits of the whole image."""
    model, _ = make_tiny("anole")
    ids = torch.tensor([[31, 10, 12, 9], [31, 31, 11, 9], [31, 13, 11, 9]])
    tokens = {}
    for method in ("jacobi", "autoregressive"):
        decode = lantern.custom_generate(method, family="anole", grid=shape, seed=1)
        tokens[method] = [
            model.generate(ids, do_sample=is_random, custom_generate=decode) for is_random in (False, True)
        ]
    for found, expected in zip(*tokens.values(), strict=True):
        assert torch.equal(found, expected) and found.shape == (3, 4 + shape[0] * shape[1])
    greedy = tokens["jacobi"][0]
    with torch.no_grad():
        logits = model.lm_head(model.model(greedy[:, :-1]).last_hidden_state[:, 3:])[..., 4 : 4 + NUM_CODES]
    assert torch.equal(logits.argmax(-1) + 4, greedy[:, 4:])


@pytest.mark.parametrize("family", ["emu3", "glm_image"])
def test_generate_takes_the_size_in_pixels_where_the_prompt_states_it(tiny, few_codes, family):
    """The images equal those of a model made for this size. A square size may be its side. Weights are shared."""
    model, processor = tiny[family]
    wrapped = lantern.from_transformers(model, processor, grid=4)
    side = PIXELS[family]
    for shape in [(3, 5), (3, 3)]:
        made = lantern.from_transformers(model, processor, grid=shape)
        size = tuple(part * side for part in shape)
        size = size[0] if shape == (3, 3) else size
        for method in ("jacobi", "autoregressive"):
            images, expected = wrapped.generate(PROMPTS, method, size=size), made.generate(PROMPTS, method)
            assert torch.equal(images.codes, expected.codes) and (images.pixels == expected.pixels).all()
    usual = [
        wrapped.generate(PROMPTS, **size).codes for size in ({}, {"size": (4 * side, 4 * side)}, {"size": 4 * side})
    ]
    assert torch.equal(usual[0], usual[1]) and torch.equal(usual[0], usual[2])
    assert torch.equal(usual[0], lantern.from_transformers(model, processor, grid=4).generate(PROMPTS).codes)
    resized, _ = wrapped.variants._resized[3, 5]
    assert resized.target.token_embedding is wrapped.models.target.token_embedding


def test_sizes_that_a_model_does_not_have_are_one_sentence(tiny):
    janus, glm = (lantern.from_transformers(*tiny[family], grid=4) for family in ("janus", "glm_image"))
    embedded = lantern.load("embedded")
    for model, usual in ((janus, 8), (embedded, 48)):
        with pytest.raises(ValueError, match=rf"size must be \({usual}, {usual}\), the .* got \(32, 64\)"):
            model.generate("cat", size=(32, 64))
    with pytest.raises(ValueError, match=r"size must be multiples of 32 pixels, the side of a code, got \(64, 70\)"):
        glm.generate("cat", size=(64, 70))
    for size in ((64,), 0, "64x64", (64, 64.0), [(64, 64), (64, 96)]):
        with pytest.raises(ValueError, match=r"size must be an integer >= 1, or a pair \(height, width\) of them, got"):
            glm.generate("cat", size=size)
    with pytest.raises(ValueError, match="at most 256 times the shorter one, got 1 x 257 codes"):
        glm.generate("cat", size=(32, 257 * 32))
    with pytest.raises(ValueError, match="grid must be an integer >= 1, or a pair"):
        lantern.from_transformers(*tiny["janus"], grid=(4, 0))
    glm.models.draft = embedded.models.draft
    with pytest.raises(ValueError, match=r"size must be \(128, 128\), .* without a draft model"):
        glm.generate("cat", size=(64, 96))
    assert embedded.generate("a large red circle on grass", size=48).pixels.shape == (1, 48, 48, 3)


@pytest.mark.slow
@pytest.mark.parametrize(("height", "width"), [(1152, 768), (1024, 1152)])
def test_glm_image_draws_its_processors_default_and_its_cards_example(tiny, height, width):
    model, processor = tiny["glm_image"]
    sizes = {} if (height, width) == (1152, 768) else {"target_h": height, "target_w": width}
    inputs = processor(text=PROMPTS[:1], return_tensors="pt", **sizes)
    large, small = (tuple(grid[1:].tolist()) for grid in inputs["image_grid_thw"])
    wrapped = lantern.from_transformers(model, processor, grid=4)
    assert FAMILIES["glm_image"].small_shape(large) == small
    assert (large, small) in [((36, 24), (19, 13)), ((32, 36), (15, 16))]
    images = wrapped.generate(PROMPTS[0], method="jacobi", temperature=0.0, size=(height, width))
    ids, mask = wrapped.variants._resized[large][1].encode(PROMPTS[:1])
    assert torch.equal(ids[mask][None], inputs["input_ids"])
    theirs = codes_of_glm_image(
        model, inputs["input_ids"], large, attention_mask=torch.ones_like(inputs["input_ids"]), do_sample=False
    )
    assert torch.equal(images.codes.long(), theirs) and images.pixels.shape == (1, height, width, 3)


def test_a_sample_of_an_image_that_is_no_square_is_saved_as_it_is(tiny, few_codes, tmp_path):
    model = lantern.from_transformers(*tiny["glm_image"], grid=4)
    images = model.generate(PROMPTS, size=(64, 192))
    images.save(tmp_path / "images.png")
    saved = torch.from_numpy(np.asarray(Image.open(tmp_path / "images.png")))
    assert saved.shape == (64, 3 * 192, 3) and torch.equal(saved[:, 192:384], torch.from_numpy(images.pixels[1]))
    assert [picture.size for picture in images.pictures()] == [(192, 64)] * 3
    samples = sample_prompt(model, PROMPTS[0], ["jacobi"], (64, 192))
    assert [sample.pixels.shape for sample in samples] == [(64, 192, 3)] * 2 and samples[1].is_equal
    shown = draw_samples(PROMPTS[:1], [samples]).axes[0].images[0]
    assert shown.get_array().shape == (64, 192, 3)


def test_small_grids_are_those_of_the_processor(tiny):
    _, processor = tiny["glm_image"]
    for shape in ((1, 1), (3, 7), (7, 3), (23, 41), (60, 16), (36, 24), (5, 64)):
        height, width = (32 * side for side in shape)
        inputs = processor(text=PROMPTS[:1], return_tensors="pt", target_h=height, target_w=width)
        found = tuple(inputs["image_grid_thw"][1, 1:].tolist())
        assert FAMILIES["glm_image"].small_shape(shape) == found


def test_pixels_are_those_of_the_classs_own_image_decoder(tiny):
    """In lines of the width that was asked for: decoding the transposed codes gives other pixels."""
    codes = torch.randint(NUM_CODES, (2, 3, 5), generator=torch.Generator().manual_seed(0))
    model, processor = tiny["emu3"]
    images = lantern.from_transformers(model, processor, grid=(3, 5)).tokenizer
    words = F.pad(codes + 40, (0, 1), value=6).flatten(1)
    expected = model.decode_image_tokens(image_tokens=F.pad(words, (0, 3), value=7), height=3, width=5)
    torch.testing.assert_close(images.decode(codes), expected.clamp(-1, 1), atol=1e-5, rtol=0)
    model, processor = tiny["janus"]
    images = lantern.from_transformers(model, processor, grid=(3, 5)).tokenizer
    inner = model.model.vqmodel
    vectors = F.normalize(inner.quantize.embedding(codes), dim=-1).permute(0, 3, 1, 2)
    with torch.no_grad():
        expected = inner.decoder(inner.post_quant_conv(vectors))
    torch.testing.assert_close(images.decode(codes), expected.clamp(-1, 1), atol=1e-5, rtol=0)
    images = lantern.from_transformers(*tiny["glm_image"], grid=(3, 5)).tokenizer
    assert torch.equal(images.decode(codes)[:, :, ::32, ::32], images.colours[codes].permute(0, 3, 1, 2))
    assert torch.equal(images.decode(codes), images.decode(codes.flatten(1)))


@pytest.mark.parametrize("sizes", [{"columns": 6}, {"grid": 6, "columns": 2, "line_end": 1}])
def test_every_kind_of_draft_keeps_the_tokens_of_an_image_that_is_no_square(sizes):
    """With a target of Lantern's own layers, which turns by row and column, and a draft model."""
    models = make_models(**sizes)
    for temperature in (0.0, 1.0):
        expected = generate(models, make_method("autoregressive"), temperature=temperature).codes
        for method in ("jacobi", "hybrid", "eagle2"):
            found = generate(models, make_method(method), temperature=temperature)
            if temperature == 0 or method != "eagle2":
                assert torch.equal(found.codes, expected), method
    if models.target.config.line_end is not None:
        assert (expected.view(5, 6, 3)[..., 2] == models.target.config.num_codes).all()


def test_a_square_has_the_fields_of_older_files():
    assert TargetConfig(**shape_fields((8, 8))) == TargetConfig(grid=8)
    config = TargetConfig(**shape_fields((3, 5), (2, 2)))
    assert (config.shape, config.small_shape, config.num_image_tokens) == ((3, 5), (2, 2), 4 + 15)
    assert config.code_grids(torch.arange(19))[:, 0].tolist() == [4, 9, 14]
