import numpy as np
import pandas as pd
import pytest
import torch
from feature_sets import gaussian

from lantern_pipeline.metrics.fidelity import SET_COLUMNS, KnownFeatures
from lantern_pipeline.metrics.set_distance import Gaussian

METRICS = ("fid", "kid", "precision", "recall")
SETTINGS = {"kid_subset_size": 20, "kid_subsets": 5, "prc_neighbours": 3, "fidelity_resamples": 50}


def known(reference):
    return KnownFeatures(Gaussian.of(reference), reference, reference)


def measure(generated, reference, **changes):
    return known(reference).compare(generated, generated, {**SETTINGS, **changes}, 0)


def test_a_set_against_itself():
    found = measure(gaussian(50), gaussian(50))
    assert tuple(found) == SET_COLUMNS
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
        return pd.DataFrame([reference.compare(features, features, settings, 0) for features in sets])

    truth, found = measure_sets(400, 1000, 2).mean(), measure_sets(100, 5000, 60)
    for name in METRICS:
        hits = ((found[f"{name}_low"] <= truth[name]) & (truth[name] <= found[f"{name}_high"])).sum()
        assert hits >= 88, (name, hits)


def test_what_is_not_known_of_the_reference_is_not_measured():
    reference = gaussian(30, seed=1)
    statistics = KnownFeatures(Gaussian.of(reference), None, None)
    found = statistics.compare(gaussian(40), gaussian(40), SETTINGS, 0)
    assert {name for name, value in found.items() if not np.isnan(value)} == {"fid", "fid_low", "fid_high"}
    assert found["fid"] == measure(gaussian(40), reference)["fid"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_same_numbers():
    generated, reference = gaussian(51), gaussian(40, shift=0.7, seed=1)
    assert measure(generated, reference.cuda()) == pytest.approx(measure(generated, reference), rel=1e-6, abs=1e-9)
