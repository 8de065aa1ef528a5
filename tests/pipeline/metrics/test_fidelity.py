import numpy as np
import pandas as pd
import pytest
import torch
from feature_sets import gaussian

from lantern_pipeline.metrics.feature_extractors import classifier_features
from lantern_pipeline.metrics.fid import FID_COLUMNS, Gaussian
from lantern_pipeline.metrics.fidelity import ClassifierFidelity, Reference, feature_scale
from lantern_pipeline.metrics.kid import KID_COLUMNS
from lantern_pipeline.metrics.precision_recall import PRECISION_RECALL_COLUMNS
from lantern_pipeline.world.attribute_classifier import AttributeClassifier, AttributeClassifierConfig

METRICS = ("fid", "kid", "precision", "recall")
SETTINGS = {"kid_subset_size": 20, "kid_subsets": 5, "prc_neighbours": 3, "fidelity_resamples": 50}


def known(reference):
    return Reference({}, Gaussian.of(reference), reference, reference)


def measure(generated, reference, **changes):
    return known(reference).compare(generated, {**SETTINGS, **changes}, 0)


def test_a_set_against_itself():
    found = measure(gaussian(50), gaussian(50))
    assert tuple(found) == (*FID_COLUMNS, *KID_COLUMNS, *PRECISION_RECALL_COLUMNS)
    assert found["fid"] == pytest.approx(0.0, abs=1e-5)
    assert (found["precision"], found["recall"]) == (1.0, 1.0)


def test_fewer_images_than_features_still_give_numbers_inside_their_intervals():
    found = measure(gaussian(25, width=40), gaussian(25, width=40, seed=1))
    assert np.isfinite(list(found.values())).all()
    for name in METRICS:
        assert found[f"{name}_low"] <= found[name] <= found[f"{name}_high"]


def test_intervals_cover_what_this_many_images_have_on_average():
    # The truth of each metric is its mean over 400 further sets of 48 images. At a true coverage of 0.95, fewer than 88
    # hits of 100 would come up less than once in 600 times. Intervals of FID are wider than they need to be.
    reference = known(gaussian(200, seed=1))

    def measure_sets(count, first, num_resamples):
        settings = {**SETTINGS, "fidelity_resamples": num_resamples}
        sets = [gaussian(48, shift=0.5, seed=first + i) * 0.9 for i in range(count)]
        return pd.DataFrame([reference.compare(features, settings, 0) for features in sets])

    truth, found = measure_sets(400, 1000, 2).mean(), measure_sets(100, 5000, 60)
    for name in METRICS:
        hits = ((found[f"{name}_low"] <= truth[name]) & (truth[name] <= found[f"{name}_high"])).sum()
        assert hits >= 88, (name, hits)


def test_what_is_not_known_of_the_reference_is_not_measured():
    reference = gaussian(30, seed=1)
    found = Reference({}, Gaussian.of(reference), None, None).compare(gaussian(40), SETTINGS, 0)
    assert tuple(found) == FID_COLUMNS
    assert found["fid"] == measure(gaussian(40), reference)["fid"]


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
    with pytest.raises(ValueError, match="at least 2 reference images, got 1"):
        feature_scale(features[:1])


def test_the_attribute_classifiers_features_are_standardised_by_the_reference():
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
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_same_numbers():
    generated, reference = gaussian(51), gaussian(40, shift=0.7, seed=1)
    assert measure(generated, reference.cuda()) == pytest.approx(measure(generated, reference), rel=1e-6, abs=1e-9)
