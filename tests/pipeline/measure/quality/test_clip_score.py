"""Tests that CLIP score and HPS equal those of open_clip, called directly on image files."""

import json
import math

import numpy as np
import open_clip
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import save_file

from helpers.paths import ROOT
from helpers.published_stand_ins import TINY_CLIP, tiny_clip, write_pictures
from lantern_pipeline.data.image_files import map_images
from lantern_pipeline.fetch.manifest import describe_file, describe_path, make_manifest
from lantern_pipeline.measure.quality.clip_score import (
    OPENAI_VIT_B_32,
    QUICK_GELU,
    load_open_clip,
    read_architecture,
)

TEXTS = ["a dog on a skateboard", "Two RED apples, and a very long caption " + "of many words " * 40, "snow"]
PREFIX = "A photo depicts "
OPENAI, HPS = QUICK_GELU


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write an architecture, its weights in three forms, and images."""
    place = tmp_path_factory.mktemp("clip")
    (place / "tiny-clip.json").write_text(json.dumps(TINY_CLIP))
    state = tiny_clip().state_dict()
    save_file(state, place / "whole.safetensors")
    save_file({name: tensor.half() for name, tensor in state.items()}, place / "half.safetensors")
    torch.save({"epoch": 3, "state_dict": state}, place / "HPS_v2.1_compressed.pt")
    save_file({name: tensor for name, tensor in state.items() if name != "visual.proj"}, place / "lacking.safetensors")
    write_pictures(place / "images", 3, seed=0, sizes=((48, 48),))
    return place


@pytest.fixture(scope="module")
def pictures(folder):
    return [Image.open(file).convert("RGB") for file in sorted((folder / "images").iterdir())]


@pytest.fixture(scope="module")
def drawn(pictures):
    """Return the same images as a decoder returns them, float in [-1, 1]."""
    pixels = torch.stack([torch.from_numpy(np.array(picture)).permute(2, 0, 1) for picture in pictures])
    return pixels.float() / 127.5 - 1


def load(folder, weights="whole.safetensors", **options):
    return load_open_clip(str(folder / "tiny-clip.json"), weights and folder / weights, **options)


def score_directly(folder, pictures, texts):
    """Compute the scores as a script with open_clip would do."""
    open_clip.add_model_config(str(folder / "tiny-clip.json"))
    weights = str(folder / "whole.safetensors")
    model, _, preprocess = open_clip.create_model_and_transforms("tiny-clip", pretrained=weights)
    tokenizer = open_clip.get_tokenizer("tiny-clip")
    with torch.no_grad():
        image = model.eval().encode_image(torch.stack([preprocess(picture) for picture in pictures]), normalize=True)
        text = model.encode_text(tokenizer(texts), normalize=True)
    return (image * text).sum(dim=-1)


def test_scores_are_open_clips_with_prefix_and_scaling_where_the_config_says_so(folder, pictures, drawn):
    plain, prefixed = (score_directly(folder, pictures, [start + text for text in TEXTS]) for start in ("", PREFIX))
    assert not torch.allclose(plain, prefixed, atol=1e-3)
    scorer = load(folder, prompt_prefix=PREFIX, preprocessing="centre_lanczos_48")
    assert torch.allclose(scorer.score(drawn, TEXTS), prefixed, atol=1e-5) and scorer.name == "tiny-clip"
    small = [picture.resize((20, 20), Image.Resampling.LANCZOS) for picture in pictures]
    expected = score_directly(folder, small, TEXTS)
    assert torch.allclose(load(folder, preprocessing="centre_lanczos_20").score(drawn, TEXTS), expected, atol=1e-5)
    # HPS: the cosine of the checkpoint, without prefix or scaling
    found = load(folder, "HPS_v2.1_compressed.pt").score(drawn, TEXTS, batch_size=2)
    assert torch.allclose(found, plain, atol=1e-5)
    assert found.shape == (3,) and all(-1 <= value <= 1 and math.isfinite(value) for value in found.tolist())


def test_captions_that_are_cut_are_counted(folder, drawn, caplog):
    long = "many " * 75  # with the start and the end token, 77 tokens
    scorer = load(folder)
    assert scorer.count_cut([long, "snow"]) == 0 and not caplog.records
    scores = scorer.score(drawn[:1].expand(3, -1, -1, -1), [long + f"{word} end" for word in TEXTS], batch_size=2)
    assert len(set(scores.tolist())) == 1
    assert scorer.score(drawn[:1], [long + f"{TEXTS[0]} end"]) == scores[0]
    (record,) = caplog.records  # one warning for all batches, and none for a caption that is known
    message = "tiny-clip reads 77 tokens of a caption: 3 of 3 captions are cut, the first is 'many many "
    assert record.getMessage().startswith(message)
    assert load(folder, prompt_prefix=PREFIX).count_cut([long]) == 1


def test_half_precision_weights_are_scored_in_float32(folder, drawn):
    scorer = load(folder, "half.safetensors")
    assert {parameter.dtype for parameter in scorer.model.parameters()} == {torch.float32}
    assert torch.isfinite(scorer.score(drawn, TEXTS)).all()
    prepared = scorer.preprocess(drawn)
    assert prepared.shape == (3, 3, 32, 32) and prepared.dtype == torch.float32
    assert map_images(torch.zeros(1, 3, 4, 4, dtype=torch.uint8), lambda p: torch.ones(1)).shape == (1, 1)


def test_foreign_weights_are_refused(folder):
    with pytest.raises(ValueError, match=r"lacking\.safetensors lacks the tensor visual\.proj"):
        load(folder, "lacking.safetensors")


@pytest.mark.parametrize(
    ("source", "sha256", "is_quick", "remedy"),
    [
        ("elsewhere", OPENAI, False, "trained with quick GELU, .* has plain GELU.* set quick_gelu to true"),
        ("elsewhere", HPS, True, "trained without quick GELU, .* has quick GELU.* set quick_gelu to false"),
        ("timm/vit_large_patch14_clip_224.openai", "0" * 64, False, "trained with quick GELU"),
        ("elsewhere", OPENAI, True, None),
        ("elsewhere", HPS, False, None),
        ("elsewhere", "0" * 64, False, None),
    ],
)
def test_known_weights_need_the_gelu_of_their_training(folder, tmp_path, source, sha256, is_quick, remedy):
    (tmp_path / "mine.json").write_text(json.dumps({**TINY_CLIP, "quick_gelu": is_quick}))
    file = folder / "whole.safetensors"
    manifest = make_manifest("clip", file, source, {file.name: describe_file(file)})
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "sha256": sha256}))
    given = str(tmp_path / "mine.json"), tmp_path / "manifest.json"
    if remedy is None:
        load_open_clip(*given)
    else:
        with pytest.raises(ValueError, match=remedy):
            load_open_clip(*given)


def test_known_weights_are_known_beside_other_files(tmp_path, monkeypatch):
    place = tmp_path / "repository"
    place.mkdir()
    save_file(tiny_clip().state_dict(), place / "model.safetensors")
    (place / "config.json").write_text("{}")
    manifest = make_manifest("clip", place, "elsewhere", describe_path(place))
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "mine.json").write_text(json.dumps({**TINY_CLIP, "quick_gelu": False}))
    monkeypatch.setitem(QUICK_GELU, describe_file(place / "model.safetensors")["sha256"], True)
    for given in (tmp_path / "manifest.json", place):
        with pytest.raises(ValueError, match=r"model\.safetensors were trained with quick GELU"):
            load_open_clip(str(tmp_path / "mine.json"), given)


def test_the_known_weights_are_those_of_the_config():
    files = yaml.safe_load((ROOT / "workflow" / "resources.yaml").read_text())["resources"]
    assert [hash for name in ("clip_vit_b_32", "hps_v2_1") for hash in files[name]["files"].values()] == [OPENAI, HPS]


def test_the_published_architectures_are_known():
    openai, hps = read_architecture(OPENAI_VIT_B_32), read_architecture("ViT-H-14")
    assert openai["quick_gelu"] is True and openai["vision_cfg"]["patch_size"] == 32
    assert "quick_gelu" not in hps and hps["vision_cfg"]["width"] == 1280
    with pytest.raises(ValueError, match="no model 'ViT-B-99'; OpenAI's ViT-B/32 is 'ViT-B-32-quickgelu'"):
        read_architecture("ViT-B-99")
    with pytest.raises(ValueError, match="must be a plain CLIP model"):
        read_architecture("ViT-B-16-SigLIP")
