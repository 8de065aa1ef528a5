"""torch-fidelity's own extractors and metrics, called directly, give the same numbers."""

import hashlib
import json
import os
import pickle

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch_fidelity import calculate_metrics
from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
from torch_fidelity.feature_extractor_vgg16 import FeatureExtractorVGG16

from lantern_pipeline.metrics.feature_extractors import load_extractor, load_inception, load_published, load_vgg16
from lantern_pipeline.metrics.fid import Gaussian, measure_fid
from lantern_pipeline.metrics.kid import measure_kid
from lantern_pipeline.metrics.precision_recall import measure_precision_recall
from lantern_pipeline.metrics.reference_statistics import measure_reference
from published_stand_ins import inception_weights, narrow_vgg16, vgg16_weights, write_pictures


@pytest.fixture(scope="module")
def inception_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "inception.pth"
    torch.save(inception_weights(), path)
    return path


@pytest.fixture
def vgg16_file(tmp_path, monkeypatch):
    monkeypatch.setattr(torchvision.models, "vgg16", narrow_vgg16)
    path = tmp_path / "vgg16.pth"
    torch.save(vgg16_weights(), path)
    return path


@pytest.fixture(scope="module")
def pixels():
    return torch.randint(256, (3, 3, 40, 40), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def test_inception_is_torch_fidelitys(inception_file, pixels):
    direct = FeatureExtractorInceptionV3("mine", ["2048"], feature_extractor_weights_path=str(inception_file))
    extractor = load_inception(inception_file)
    found = extractor.extract(pixels)
    assert found.shape == (3, 2048) and torch.equal(found, direct(pixels)[0])
    assert extractor.name == "inception-v3-compat/2048"
    assert extractor.sha256 == hashlib.sha256(inception_file.read_bytes()).hexdigest()


@pytest.mark.parametrize("layer", ["fc2", "fc2_relu"])
def test_vgg16_is_torch_fidelitys(vgg16_file, pixels, layer):
    direct = FeatureExtractorVGG16("mine", [layer], feature_extractor_weights_path=str(vgg16_file))
    extractor = load_vgg16(vgg16_file, layer=layer)
    found = extractor.extract(pixels)
    assert found.shape == (3, 16) and torch.equal(found, direct(pixels)[0])
    assert (found < 0).any() == (layer == "fc2")
    assert extractor.name == f"vgg16/{layer}"


def test_an_unknown_layer_is_named(vgg16_file):
    with pytest.raises(ValueError, match="vgg16 has no layer 'fc3'; it has fc2, fc2_relu"):
        load_vgg16(vgg16_file, layer="fc3")


def test_metrics_are_those_that_torch_fidelity_measures_on_files(inception_file, tmp_path):
    generated = write_pictures(tmp_path / "generated", 14, seed=0)
    real = write_pictures(tmp_path / "real", 12, seed=1, brightest=60)
    options = {"feature_extractor_weights_path": str(inception_file), "cuda": False, "save_cpu_ram": True}
    options |= {f"feature_layer_{metric}": "64" for metric in ("fid", "kid", "prc")}
    options |= {"kid_subset_size": 8, "kid_subsets": 4, "rng_seed": 3, "verbose": False, "cache": False}
    direct = calculate_metrics(
        input1=str(generated),
        input2=str(real),
        fid=True,
        kid=True,
        prc=True,
        feature_extractor="inception-v3-compat",
        **options,
    )
    extractor = load_inception(inception_file, layer="64")
    sets = {
        place.name: measure_reference(place, place.name, {"inception": extractor}, "none", batch_size=5)
        for place in (generated, real)
    }
    features = {name: found.features["inception"] for name, found in sets.items()}
    common = {"num_resamples": 4, "seed": 3}
    fid = measure_fid(features["generated"], Gaussian.of(features["real"]), **common)
    kid = measure_kid(features["generated"], features["real"], subset_size=8, num_subsets=4, **common)
    near = measure_precision_recall(features["generated"], features["real"], neighbours=3, **common)
    assert fid["fid"] == pytest.approx(direct["frechet_inception_distance"], rel=1e-3)
    # torch-fidelity stays in float32, whose digits end at 1e-7
    assert kid["kid"] == pytest.approx(direct["kernel_inception_distance_mean"], rel=1e-3, abs=5e-7)
    assert kid["kid_std"] == pytest.approx(direct["kernel_inception_distance_std"], rel=1e-3, abs=5e-7)
    assert abs(kid["kid"]) > 1e-5
    assert near["precision"] == pytest.approx(direct["precision"])
    assert near["recall"] == pytest.approx(direct["recall"])


def test_safetensors_and_wrapped_weights_are_read(tmp_path, vgg16_file, pixels):
    state = vgg16_weights()
    expected = load_vgg16(vgg16_file).extract(pixels)
    save_file(state, tmp_path / "model.safetensors")
    torch.save({"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}}, tmp_path / "wrapped.pt")
    torch.save(state, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    for name in ("model.safetensors", "wrapped.pt", "old.pth"):
        assert torch.equal(load_vgg16(tmp_path / name).extract(pixels), expected), name


def test_a_manifest_leads_to_the_weights_and_gives_their_hash(tmp_path, vgg16_file, pixels):
    from lantern_pipeline.downloads.manifest import describe_file, make_manifest

    files = {vgg16_file.name: describe_file(vgg16_file)}
    manifest = tmp_path / "vgg16.json"
    manifest.write_text(json.dumps(make_manifest("vgg16", vgg16_file, "somewhere", files)))
    extractor = load_vgg16(manifest)
    assert extractor.sha256 == files[vgg16_file.name]["sha256"] == load_published(vgg16_file).sha256


def test_weights_of_another_net_are_named(tmp_path, vgg16_file):
    torch.save({"conv.weight": torch.zeros(2)}, tmp_path / "other.pth")
    with pytest.raises(ValueError, match=r"other.pth does not hold the weights of vgg16: Missing key\(s\)"):
        load_vgg16(tmp_path / "other.pth")
    state = vgg16_weights()
    state["features.0.weight"] = torch.zeros(9, 3, 3, 3)
    torch.save(state, tmp_path / "wide.pth")
    with pytest.raises(ValueError, match=r"wide.pth does not hold .* size mismatch for (model\.)?features.0.weight"):
        load_vgg16(tmp_path / "wide.pth")


class Trap:
    """What a hostile pickle holds: a call."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_pickle_with_code_is_not_run(tmp_path):
    path, mark = tmp_path / "weights.pth", tmp_path / "ran"
    with open(path, "wb") as file:
        pickle.dump({"features.0.weight": Trap(mark)}, file)
    with pytest.raises(ValueError, match=r"weights.pth"):
        load_extractor("vgg16", "fc2", path)
    assert not mark.exists()


def test_truncated_and_missing_files_are_named(tmp_path, inception_file):
    path = tmp_path / "cut.pth"
    path.write_bytes(inception_file.read_bytes()[:5000])
    with pytest.raises(ValueError, match=r"cut\.pth"):
        load_inception(path)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pth"):
        load_inception(tmp_path / "nowhere.pth")
