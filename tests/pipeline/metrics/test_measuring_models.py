"""What images will be measured with is loaded before anything is generated; a wrong file is named."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
from safetensors.torch import save_file
from torch import nn

from lantern_pipeline.metrics import measuring_models
from lantern_pipeline.metrics.feature_extractors import Extractor
from lantern_pipeline.metrics.measuring_models import check_metric_weights
from lantern_pipeline.metrics.registry import MetricFiles
from published_stand_ins import TINY_CLIP, tiny_clip, write_pictures

ALL = {"fidelity": "inception", "clip": "openai", "prompt_accuracy": False, "hps": True}
IMAGES = {"name": "coco", "images": "coco", "statistics": None}
STATISTICS = {"name": "coco", "images": None, "statistics": "coco"}


@pytest.fixture
def files(tmp_path):
    for seed, name in enumerate(("clip", "hps", "inception", "vgg16")):
        save_file(tiny_clip(seed).state_dict(), tmp_path / f"{name}.safetensors")
    (tmp_path / "tiny-clip.json").write_text(json.dumps(TINY_CLIP))
    write_pictures(tmp_path / "images", 3, seed=0)
    np.savez(tmp_path / "statistics.npz", mu=np.zeros(3), sigma=np.eye(3))
    return tmp_path


@pytest.fixture
def loaded(monkeypatch):
    """Extractors that need no weights; what they were loaded from is kept."""
    calls = []
    extractor = Extractor("nothing/1", "a" * 64, nn.Identity())

    def load(found, vgg16_layer, device):
        calls.append((found.inception_weights.name, found.vgg16_weights.name, vgg16_layer, str(device)))
        return {"inception": extractor, "vgg16": extractor}

    monkeypatch.setattr(measuring_models, "load_extractors", load)
    return calls


def check(files, reference=IMAGES, **metrics):
    published = {
        "preprocessing": "centre_lanczos_32",
        "clip_architecture": str(files / "tiny-clip.json"),
        "clip_prefix": "",
        "hps_architecture": str(files / "tiny-clip.json"),
        "vgg16_layer": "fc2_relu",
        "reference": reference,
    }
    names = ("clip", "hps", "inception", "vgg16")
    paths = {f"{name}_weights": files / f"{name}.safetensors" for name in names}
    given = {"reference_images": "images"} if reference["images"] else {"reference_statistics": "statistics.npz"}
    paths |= {name: files / path for name, path in given.items()}
    return check_metric_weights({**ALL, "published": published, **metrics}, MetricFiles(**paths))


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("reference", [IMAGES, STATISTICS])
def test_every_chosen_model_is_loaded_and_its_weights_are_named(files, loaded, reference):
    found = check(files, reference)
    assert found == {name: sha256(files / f"{name}.safetensors") for name in ("inception", "vgg16", "clip", "hps")}
    assert loaded == [("inception.safetensors", "vgg16.safetensors", "fc2_relu", "cpu")]


def test_what_is_off_or_trained_by_the_run_is_not_looked_at(files, loaded):
    (files / "clip.safetensors").write_text("# a README, not weights")
    assert set(check(files, fidelity=None, clip="own")) == {"hps"} and loaded == []


@pytest.mark.parametrize("name", ["clip", "hps"])
def test_a_file_that_holds_no_weights_is_named(files, loaded, name):
    (files / f"{name}.safetensors").write_text("# a README, not weights")
    with pytest.raises(ValueError, match=rf"{name}\.safetensors should be a PyTorch or safetensors file"):
        check(files)


def test_weights_of_another_model_are_named(files):
    with pytest.raises(ValueError, match=r"inception\.safetensors does not hold the weights of inception"):
        check(files)


@pytest.mark.parametrize("broken", ["image", "folder", "statistics"])
def test_real_images_that_cannot_be_read_are_named(files, loaded, broken):
    if broken == "image":
        (files / "images" / "000.png").write_bytes(b"no image")
        sentence = "000.png is not a readable image"
    elif broken == "folder":
        for image in (files / "images").iterdir():
            image.unlink()
        sentence = "images holds 0 images"
    else:
        (files / "statistics.npz").write_bytes(b"no archive")
        sentence = "should be an .npz file with the arrays mu and sigma"
    with pytest.raises(ValueError, match=sentence):
        check(files, STATISTICS if broken == "statistics" else IMAGES)
