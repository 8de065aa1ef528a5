import pytest
import torch
from feature_sets import gaussian
from torch_fidelity import calculate_metrics

from lantern.checkpoints.native import save_model
from lantern_pipeline.metrics.features import (
    EXTRACTOR_NAME,
    ImageTensors,
    extract_features,
    feature_scale,
    register_attribute_classifier,
)
from lantern_pipeline.metrics.fidelity import AttributeClassifierRuler
from lantern_pipeline.world.attribute_classifier import AttributeClassifier, AttributeClassifierConfig

SETTINGS = {"kid_subset_size": 20, "kid_subsets": 5, "prc_neighbours": 3, "fidelity_resamples": 5}


@pytest.fixture(scope="module")
def attribute_classifier():
    torch.manual_seed(0)
    return AttributeClassifier(AttributeClassifierConfig(width=8, num_features=16)).eval()


@pytest.fixture(scope="module")
def images():
    generator = torch.Generator().manual_seed(0)
    return torch.rand(60, 3, 48, 48, generator=generator) * 2 - 1


def test_standardised_features_have_mean_zero_and_spread_one():
    features = torch.cat([gaussian(100, shift=3.0), torch.full((100, 1), 2.0)], dim=1)
    mean, std = feature_scale(features)
    scaled = (features - mean) / std
    assert scaled.mean(0).abs().max() < 1e-5
    assert scaled[:, :-1].std(0).tolist() == pytest.approx([1.0] * 6, abs=1e-5)
    assert scaled[:, -1].abs().max() == 0  # a constant feature says nothing, and breaks nothing


def test_the_registered_extractor_gives_the_same_numbers_through_torch_fidelity_itself(
    attribute_classifier, images, tmp_path
):
    save_model(tmp_path / "attribute_classifier.safetensors", attribute_classifier)
    generated, reference = images[:28], images[28:]
    ruler = AttributeClassifierRuler(attribute_classifier)
    comparison = ruler.prepare(reference.split(10), "halves", SETTINGS, 0)
    ours = comparison.compare(ruler.extract(generated))
    theirs = calculate_metrics(
        input1=ImageTensors(generated),
        input2=ImageTensors(reference),
        feature_extractor=register_attribute_classifier(),
        feature_extractor_weights_path=str(tmp_path / "attribute_classifier.safetensors"),
        feature_mean=comparison.mean,
        feature_std=comparison.std,
        fid=True,
        kid=True,
        prc=True,
        kid_subset_size=20,
        kid_subsets=5,
        rng_seed=0,
        cuda=False,
        cache=False,
        save_cpu_ram=True,
        verbose=False,
    )
    assert ours["fid"] == pytest.approx(theirs["frechet_inception_distance"], rel=1e-3)
    assert ours["kid"] == pytest.approx(theirs["kernel_inception_distance_mean"], rel=1e-3, abs=1e-6)
    assert ours["precision"] == pytest.approx(theirs["precision"])
    assert ours["recall"] == pytest.approx(theirs["recall"])


def test_registering_twice_is_harmless_and_weights_are_needed():
    assert register_attribute_classifier() == register_attribute_classifier() == EXTRACTOR_NAME
    with pytest.raises(ValueError, match="feature_extractor_weights_path"):
        calculate_metrics(
            input1=ImageTensors(torch.zeros(8, 3, 48, 48)),
            input2=ImageTensors(torch.zeros(8, 3, 48, 48)),
            feature_extractor=EXTRACTOR_NAME,
            fid=True,
            cuda=False,
            cache=False,
            save_cpu_ram=True,
            verbose=False,
        )


def test_features_do_not_depend_on_the_batch(attribute_classifier, images):
    whole = extract_features(attribute_classifier, images[:20], batch_size=20)
    parts = extract_features(attribute_classifier, images[:20], batch_size=7)
    assert torch.allclose(whole, parts, atol=1e-5)
