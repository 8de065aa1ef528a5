"""CLIP score and HPS: open_clip, called directly on image files, gives the same numbers."""

import json
import math

import open_clip
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from lantern_pipeline.data.image_files import map_images
from lantern_pipeline.metrics.clip_score import OPENAI_VIT_B_32, load_open_clip, read_architecture
from published_stand_ins import TINY_CLIP, tiny_clip, write_pictures

TEXTS = ["a dog on a skateboard", "Two RED apples, and a very long caption " + "of many words " * 40, "snow"]
PREFIX = "A photo depicts "


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("clip")


@pytest.fixture(scope="module")
def architecture(folder):
    path = folder / "tiny-clip.json"
    path.write_text(json.dumps(TINY_CLIP))
    return str(path)


@pytest.fixture(scope="module")
def weights(folder):
    save_file(tiny_clip().state_dict(), folder / "open_clip_model.safetensors")
    return folder / "open_clip_model.safetensors"


@pytest.fixture(scope="module")
def pictures(folder):
    files = sorted(write_pictures(folder / "images", 3, seed=0, sizes=((48, 48),)).iterdir())
    return [Image.open(file).convert("RGB") for file in files]


@pytest.fixture(scope="module")
def drawn(pictures):
    """The same images as a decoder draws them, float in [-1, 1]."""
    import numpy as np

    pixels = torch.stack([torch.from_numpy(np.array(picture)).permute(2, 0, 1) for picture in pictures])
    return pixels.float() / 127.5 - 1


def score_directly(architecture, weights, pictures, texts):
    """What a script with open_clip would do."""
    open_clip.add_model_config(architecture)
    model, _, preprocess = open_clip.create_model_and_transforms("tiny-clip", pretrained=str(weights))
    tokenizer = open_clip.get_tokenizer("tiny-clip")
    with torch.no_grad():
        image = model.eval().encode_image(torch.stack([preprocess(picture) for picture in pictures]), normalize=True)
        text = model.encode_text(tokenizer(texts), normalize=True)
    return (image * text).sum(dim=-1)


def test_clip_score_is_open_clips(architecture, weights, pictures, drawn):
    scorer = load_open_clip(architecture, weights, prompt_prefix=PREFIX, preprocessing="centre_lanczos_48")
    expected = score_directly(architecture, weights, pictures, [PREFIX + text for text in TEXTS])
    assert torch.allclose(scorer.score(drawn, TEXTS), expected, atol=1e-5)
    assert scorer.name == "tiny-clip"
    without = score_directly(architecture, weights, pictures, TEXTS)
    assert not torch.allclose(without, expected, atol=1e-3)


def test_images_are_scaled_first_where_the_config_says_so(architecture, weights, pictures, drawn):
    scorer = load_open_clip(architecture, weights, preprocessing="centre_lanczos_20")
    small = [picture.resize((20, 20), Image.Resampling.LANCZOS) for picture in pictures]
    assert torch.allclose(scorer.score(drawn, TEXTS), score_directly(architecture, weights, small, TEXTS), atol=1e-5)


def test_hps_is_the_cosine_of_the_checkpoint_without_prefix_or_scaling(folder, architecture, weights, pictures, drawn):
    torch.save({"epoch": 3, "state_dict": tiny_clip().state_dict()}, folder / "HPS_v2.1_compressed.pt")
    scorer = load_open_clip(architecture, folder / "HPS_v2.1_compressed.pt")
    assert torch.allclose(scorer.score(drawn, TEXTS), score_directly(architecture, weights, pictures, TEXTS), atol=1e-5)


def test_half_precision_weights_are_scored_in_float32(folder, architecture, drawn):
    halves = {name: tensor.half() for name, tensor in tiny_clip().state_dict().items()}
    save_file(halves, folder / "half.safetensors")
    scorer = load_open_clip(architecture, folder / "half.safetensors")
    assert {parameter.dtype for parameter in scorer.model.parameters()} == {torch.float32}
    assert torch.isfinite(scorer.score(drawn, TEXTS)).all()


def test_random_weights_are_refused(architecture):
    with pytest.raises(ValueError, match="needs a file of weights: a random model's scores look plausible"):
        load_open_clip(architecture, None)


def test_weights_of_another_model_are_named(folder, architecture):
    state = tiny_clip().state_dict()
    del state["visual.proj"]
    save_file(state, folder / "lacking.safetensors")
    with pytest.raises(ValueError, match=r"lacking\.safetensors lacks the tensor visual\.proj"):
        load_open_clip(architecture, folder / "lacking.safetensors")


def test_the_published_architectures_are_known():
    openai, hps = read_architecture(OPENAI_VIT_B_32), read_architecture("ViT-H-14")
    assert openai["quick_gelu"] is True and openai["vision_cfg"]["patch_size"] == 32
    assert "quick_gelu" not in hps and hps["vision_cfg"]["width"] == 1280
    with pytest.raises(
        ValueError, match="open_clip has no model 'ViT-B-99'; OpenAI's ViT-B/32 is 'ViT-B-32-quickgelu'"
    ):
        read_architecture("ViT-B-99")
    with pytest.raises(ValueError, match="not of the plain CLIP kind"):
        read_architecture("ViT-B-16-SigLIP")


def test_scores_are_cosines(architecture, weights, drawn):
    scores = load_open_clip(architecture, weights).score(drawn, TEXTS, batch_size=2)
    assert scores.shape == (3,) and all(-1 <= value <= 1 and math.isfinite(value) for value in scores.tolist())


def test_input_keeps_its_device_and_form(architecture, weights, drawn):
    prepared = load_open_clip(architecture, weights).preprocess(drawn)
    assert prepared.shape == (3, 3, 32, 32) and prepared.dtype == torch.float32
    assert map_images(torch.zeros(1, 3, 4, 4, dtype=torch.uint8), lambda p: torch.ones(1)).shape == (1, 1)
