"""Tests of FID, KID, precision and recall against torch-fidelity, and of incomplete references."""

import hashlib
import json
import math
import os
import pickle

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch_fidelity import calculate_metrics
from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
from torch_fidelity.feature_extractor_vgg16 import FeatureExtractorVGG16

from helpers.published_stand_ins import inception_weights, narrow_vgg16, vgg16_weights, write_pictures
from lantern_pipeline.fetch.manifest import describe_file, make_manifest
from lantern_pipeline.measure.quality.distances import (
    Gaussian,
    measure_fid,
    measure_kid,
    measure_precision_recall,
)
from lantern_pipeline.measure.quality.feature_extractors import classifier_features, load_extractor
from lantern_pipeline.measure.quality.fidelity import ClassifierFidelity, feature_scale
from lantern_pipeline.measure.quality.reference_statistics import (
    OF_CLASSIFIER,
    Reference,
    measure_reference,
)
from lantern_pipeline.schema.run_config import FidelitySettings
from lantern_pipeline.world.attribute_classifier import AttributeClassifier, AttributeClassifierConfig

KID = {"subset_size": 20, "num_subsets": 4, "seed": 5}
PRC = {"neighbours": 3}
SETTINGS = FidelitySettings(num_reference=8, kid_subset_size=20, kid_subsets=5, prc_neighbours=3)


def gaussian(n, shift=0.0, seed=0, width=6):
    """Return independent normal features (n, width), float32, of standard deviation 1, 2, 3, ..."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, width, generator=generator) * torch.arange(1.0, width + 1) + shift


SETS = gaussian(51), gaussian(40, shift=0.7, seed=1)


def fid(generated, reference):
    return measure_fid(generated, Gaussian.of(reference))


def known(reference):
    return Reference({}, Gaussian.of(reference), reference, reference)


def measure(generated, reference, **changes):
    return known(reference).compare(generated, SETTINGS.model_copy(update=changes), 0)


def kernel(x, y):
    return (x @ y.T / x.shape[1] + 1) ** 3


def unbiased_kid(a, b):
    """Return the KID of two sets in double precision, from all pairs."""
    within = [(kernel(x, x).sum() - kernel(x, x).trace()) / (len(x) * (len(x) - 1)) for x in (a, b)]
    return float(sum(within) - 2 * kernel(a, b).mean())


# --- numbers -----------------------------------------------------------------------------------------


def test_precision_counts_generated_images_and_recall_real_ones():
    # the real images fill two clusters, the generated ones one of them: all are plausible, half is missed
    real = torch.cat([gaussian(40), gaussian(40, shift=100.0, seed=1)])
    generated = gaussian(40, seed=2)
    precision, recall = measure_precision_recall(generated, real, **PRC)
    assert precision > 0.6 and recall < 0.55
    assert measure_precision_recall(real, generated, **PRC) == (recall, precision)


def test_a_set_against_itself():
    found = measure(gaussian(50), gaussian(50))
    assert set(found) == {"fid", "kid", "kid_std", "kid_subset_size", "precision", "recall"}
    assert found["fid"] == pytest.approx(0.0, abs=1e-5)
    assert (found["precision"], found["recall"]) == (1.0, 1.0)


@pytest.mark.parametrize("num, others, used", [(12, 40, 12), (20, 20, 20), (51, 40, 20), (51, 9, 9)])
def test_a_subset_holds_no_more_images_than_there_are_and_the_record_says_so(num, others, used):
    generated, reference = gaussian(num).double(), SETS[1][:others].double()
    found = measure(generated, reference)
    assert found["kid_subset_size"] == used
    expected = measure_kid(generated, reference, subset_size=used, num_subsets=5, seed=0)
    assert (found["kid"], found["kid_std"]) == expected
    if num == used == others:  # the whole set: all pairs
        assert found["kid"] == pytest.approx(unbiased_kid(generated, reference), rel=1e-9)


def test_two_images_can_be_compared():
    assert math.isfinite(fid(gaussian(2), SETS[1])) and math.isfinite(measure_kid(gaussian(2), SETS[1], **KID)[0])


def test_features_of_either_format_are_computed_in_float64_and_seeds_may_be_large():
    features, doubled = SETS, [part.double() for part in SETS]
    assert fid(*features) == fid(*doubled) and Gaussian.of(features[0]).covariance.dtype == torch.float64
    assert measure_kid(*features, **KID) == measure_kid(*doubled, **KID)
    assert measure_precision_recall(*features, **PRC) == measure_precision_recall(*doubled, **PRC)
    large = {**KID, "seed": KID["seed"] + 2**32}
    assert measure_kid(*SETS, **large) == measure_kid(*SETS, **KID)  # of the same subsets


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda g, r: fid(g[:1], r), "at least 2 images, got 1 generated"),
        (lambda g, r: fid(g.index_fill(0, torch.tensor([7]), torch.nan), r), "generated images hold a value that is"),
        (lambda g, r: fid(g / 0, r), "generated images hold a value that is not finite"),
        (lambda g, r: measure_precision_recall(g[:3], r, **PRC), "prc_neighbours must be less than .* 3 generated"),
        (lambda g, r: measure_precision_recall(g, r[:3], **PRC), "prc_neighbours must be less than .* 3 reference"),
    ],
)
def test_what_cannot_be_measured_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(*SETS)


@pytest.mark.parametrize(
    "compare",
    [fid, lambda g, r: measure_kid(g, r, **KID), lambda g, r: measure_precision_recall(g, r, **PRC)],
    ids=["fid", "kid", "prc"],
)
def test_every_comparison_checks_both_sets(compare):
    generated, reference = SETS
    with pytest.raises(ValueError, match="have 6 features and the reference 2"):
        compare(generated, reference[:, :2])
    with pytest.raises(ValueError, match="reference images hold a value that is not finite"):
        compare(generated, reference / 0)


# --- references --------------------------------------------------------------------------------------


def test_what_is_not_known_of_the_reference_is_not_measured():
    reference = gaussian(30, seed=1)
    found = Reference({}, Gaussian.of(reference), None, None).compare(gaussian(40), SETTINGS, 0)
    assert found == {"fid": measure(gaussian(40), reference)["fid"]}


def test_precision_and_recall_compare_features_of_their_own_where_there_are_more():
    generated, real = gaussian(40), gaussian(30, seed=1)
    reference = Reference({}, Gaussian.of(real), real, gaussian(30, seed=2, width=4))
    found = reference.compare(torch.cat([generated, gaussian(40, seed=3, width=4)], dim=1), SETTINGS, 0)
    assert found["fid"] == measure(generated, real)["fid"] and found["kid"] == measure(generated, real)["kid"]
    other = measure(gaussian(40, seed=3, width=4), gaussian(30, seed=2, width=4))
    assert (found["precision"], found["recall"]) == (other["precision"], other["recall"])


def test_standardised_features_have_mean_zero_and_spread_one():
    features = torch.cat([gaussian(100, shift=3.0), torch.full((100, 1), 2.0)], dim=1)
    mean, std = feature_scale(features)
    scaled = (features - mean) / std
    assert scaled.mean(0).abs().max() < 1e-5
    assert scaled[:, :-1].std(0).tolist() == pytest.approx([1.0] * 6, abs=1e-5)
    assert scaled[:, -1].abs().max() == 0  # a constant feature says nothing, and breaks nothing


def test_the_attribute_classifiers_features_are_standardised_and_their_distances_are_no_fid():
    torch.manual_seed(0)
    classifier = AttributeClassifier(AttributeClassifierConfig(width=8, num_features=16)).eval()
    images = torch.rand(60, 3, 48, 48, generator=torch.Generator().manual_seed(0)) * 2 - 1
    raw = classifier_features(classifier, images)
    parts = torch.cat([classifier_features(classifier, rows) for rows in images.split(7)])
    assert raw.shape == (60, 16) and torch.allclose(raw, parts, atol=1e-5)  # whatever the batch
    fidelity = ClassifierFidelity(classifier)
    reference = fidelity.reference(images[28:].split(10), "reconstructions")
    assert dict(reference.columns) == {"reference": "reconstructions", "num_reference": 32}
    mean, std = feature_scale(raw[28:])
    found = reference.compare(fidelity.extract(images[:28]), SETTINGS, 0)
    expected = measure((raw[:28] - mean) / std, (raw[28:] - mean) / std)
    names = {"fid": OF_CLASSIFIER.frechet, "kid": OF_CLASSIFIER.kernel}
    for old, new in names.items():
        expected = {name.replace(old, new): value for name, value in expected.items()}
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert set(fidelity.describe()) == {
        *("frechet_distance_extractor", "frechet_distance_weights_sha256"),
        *("prc_extractor", "prc_weights_sha256"),
    }


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_same_numbers():
    generated, reference = SETS
    assert measure(generated, reference.cuda()) == pytest.approx(measure(generated, reference), rel=1e-6, abs=1e-9)


# --- published extractors, compared with torch-fidelity's -----------------------------------------------


@pytest.fixture(scope="module")
def inception_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "inception.pth"
    torch.save(inception_weights(), path)
    return path


@pytest.fixture
def vgg16_file(tmp_path, monkeypatch):
    monkeypatch.setattr(torchvision.models, "vgg16", narrow_vgg16)
    path, state = tmp_path / "vgg16.pth", vgg16_weights()
    for name in ("classifier.0.weight", "classifier.3.weight"):
        state[name] *= 5  # else features of different images hardly differ
    torch.save(state, path)
    return path


PIXELS = torch.randint(256, (3, 3, 40, 40), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


@pytest.mark.parametrize(
    "direct, name, layer, width",
    [
        (FeatureExtractorInceptionV3, "inception-v3-compat", "2048", 2048),
        (FeatureExtractorVGG16, "vgg16", "fc2", 16),
        (FeatureExtractorVGG16, "vgg16", "fc2_relu", 16),
    ],
)
def test_extractors_are_torch_fidelitys(direct, name, layer, width, inception_file, vgg16_file):
    path = inception_file if name.startswith("inception") else vgg16_file
    extractor = load_extractor(name, layer, path)
    found = extractor.extract(PIXELS)
    expected = direct("mine", [layer], feature_extractor_weights_path=str(path))(PIXELS)[0]
    # Inference mode may choose other kernels. Pixels without their last bit are noticed.
    torch.testing.assert_close(found, expected, atol=1e-4 * float(expected.abs().max()), rtol=0)
    assert found.shape == (3, width)
    assert (found < 0).any() == (layer == "fc2") and extractor.name == f"{name}/{layer}"
    assert extractor.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(ValueError, match=f"{name} has no layer 'fc3'; it has "):
        load_extractor(name, "fc3", path)


def test_metrics_are_those_that_torch_fidelity_measures_on_files(vgg16_file, tmp_path):
    generated = write_pictures(tmp_path / "generated", 14, seed=0)
    real = write_pictures(tmp_path / "real", 12, seed=1, brightest=60)
    options = {"feature_extractor_weights_path": str(vgg16_file), "cuda": False, "save_cpu_ram": True}
    options |= {f"feature_layer_{metric}": "fc2" for metric in ("fid", "kid", "prc")}
    options |= {"kid_subset_size": 8, "kid_subsets": 4, "rng_seed": 3, "verbose": False, "cache": False}
    options |= {"fid": True, "kid": True, "prc": True, "feature_extractor": "vgg16"}
    direct = calculate_metrics(input1=str(generated), input2=str(real), **options)
    extractor = load_extractor("vgg16", "fc2", vgg16_file)
    features = [
        measure_reference(place, place.name, {"inception": extractor}, "none", batch_size=5)[0]["inception"]
        for place in (generated, real)
    ]
    settings = SETTINGS.model_copy(update={"kid_subset_size": 8, "kid_subsets": 4})
    found = known(features[1]).compare(features[0], settings, 3)
    assert found["fid"] == pytest.approx(direct["frechet_inception_distance"], rel=1e-3)
    # torch-fidelity stays in float32, whose digits end at 1e-7
    assert found["kid"] == pytest.approx(direct["kernel_inception_distance_mean"], rel=1e-3, abs=5e-7)
    assert found["kid_std"] == pytest.approx(direct["kernel_inception_distance_std"], rel=1e-3, abs=5e-7)
    assert abs(found["kid"]) > 1e-5
    assert found["precision"] == pytest.approx(direct["precision"])
    assert found["recall"] == pytest.approx(direct["recall"])


def test_safetensors_wrapped_weights_and_manifests_are_read(tmp_path, vgg16_file):
    state = torch.load(vgg16_file, weights_only=True)
    expected = load_extractor("vgg16", "fc2", vgg16_file).extract(PIXELS)
    save_file(state, tmp_path / "model.safetensors")
    torch.save({"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}}, tmp_path / "wrapped.pt")
    torch.save(state, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    manifest = make_manifest("vgg16", vgg16_file, "somewhere", {vgg16_file.name: describe_file(vgg16_file)})
    (tmp_path / "vgg16.json").write_text(json.dumps(manifest))
    for name in ("model.safetensors", "wrapped.pt", "old.pth", "vgg16.json"):
        extractor = load_extractor("vgg16", "fc2", tmp_path / name)
        assert torch.equal(extractor.extract(PIXELS), expected), name
    assert extractor.sha256 == hashlib.sha256(vgg16_file.read_bytes()).hexdigest()


class Trap:
    """Object whose pickle holds a call, as a hostile file may."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_what_does_not_hold_the_weights_is_named_and_never_run(tmp_path, vgg16_file, inception_file):
    torch.save({"conv.weight": torch.zeros(2)}, tmp_path / "other.pth")
    torch.save({**vgg16_weights(), "features.0.weight": torch.zeros(9, 3, 3, 3)}, tmp_path / "wide.pth")
    (tmp_path / "trap.pth").write_bytes(pickle.dumps({"features.0.weight": Trap(tmp_path / "ran")}))
    (tmp_path / "cut.pth").write_bytes(inception_file.read_bytes()[:5000])
    for name, message in {
        "other.pth": r"other.pth does not hold the weights of vgg16: Missing key\(s\)",
        "wide.pth": r"wide.pth does not hold .* size mismatch for (model\.)?features.0.weight",
        "trap.pth": r"trap.pth",
        "cut.pth": r"cut\.pth",
    }.items():
        with pytest.raises(ValueError, match=message):
            load_extractor("vgg16", "fc2", tmp_path / name)
    assert not (tmp_path / "ran").exists()
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pth"):
        load_extractor("vgg16", "fc2", tmp_path / "nowhere.pth")
