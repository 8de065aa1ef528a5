import math

import numpy as np
import pandas as pd
import pytest
import scipy.linalg
import torch
from feature_sets import gaussian

from lantern_pipeline.metrics import kid
from lantern_pipeline.metrics.fid import Gaussian, measure_fid
from lantern_pipeline.metrics.intervals import draw_parts, jackknife_error
from lantern_pipeline.metrics.kid import measure_kid

COMMON = {"num_resamples": 6, "seed": 5}
KID = {"subset_size": 20, "num_subsets": 4, **COMMON}


@pytest.fixture(scope="module")
def sets():
    return gaussian(51), gaussian(40, shift=0.7, seed=1)


def fid(generated, reference, **changes):
    return measure_fid(generated, Gaussian.of(reference), **{**COMMON, **changes})


def one_bad_value(features, value):
    features = features.clone()
    features[7, 2] = value
    return features


def kernel(x, y):
    return (x @ y.T / x.shape[1] + 1) ** 3


def unbiased_kid(a, b):
    """Of two sets in double precision, from all pairs."""
    within = [(kernel(x, x).sum() - kernel(x, x).trace()) / (len(x) * (len(x) - 1)) for x in (a, b)]
    return float(sum(within) - 2 * kernel(a, b).mean())


def test_fid_is_the_formula_of_two_gaussians():
    a, b = gaussian(200).double(), gaussian(150, shift=1.5, seed=1).double()
    mean_a, mean_b, cov_a, cov_b = a.mean(0), b.mean(0), np.cov(a.T), np.cov(b.T)
    root = scipy.linalg.sqrtm(cov_a @ cov_b).real
    expected = float(((mean_a - mean_b) ** 2).sum()) + np.trace(cov_a + cov_b - 2 * root)
    assert fid(a, b)["fid"] == pytest.approx(expected, rel=1e-6)


def test_kid_is_the_unbiased_cubic_mmd_of_the_whole_set():
    a, b = gaussian(20).double(), gaussian(20, shift=1.0, seed=1).double()
    assert measure_kid(a, b, **KID)["kid"] == pytest.approx(unbiased_kid(a, b), rel=1e-9)


def test_stored_statistics_give_the_same_fid(sets):
    generated, reference = sets
    stored = Gaussian(reference.double().mean(dim=0), torch.cov(reference.double().T))
    assert measure_fid(generated, stored, **COMMON) == fid(generated, reference)


def test_fewer_images_than_features_still_give_a_number():
    found = fid(gaussian(12, width=30), gaussian(12, width=30, seed=1))
    assert all(math.isfinite(value) for value in found.values()) and found["fid_low"] < found["fid"] < found["fid_high"]


def test_fewer_images_than_features_do_not_blow_up_the_error_of_fid():
    # the spread of FID over 60 further sets; a bootstrap's error is several times that, since resamples differ in rank
    reference = Gaussian.of(gaussian(200, seed=1, width=64))
    sets = [gaussian(48, seed=100 + i, width=64) for i in range(60)]
    spread = np.std([measure_fid(x, reference, num_resamples=2, seed=0)["fid"] for x in sets])
    found = pd.DataFrame([measure_fid(x, reference, num_resamples=60, seed=0) for x in sets[:10]])
    assert 0.7 * spread < (found["fid_high"] - found["fid"]).mean() / 1.96 < 1.6 * spread


def test_intervals_are_made_of_the_metrics_of_parts(sets):
    # the metric itself on every random half of the images, by torch-fidelity or from all pairs: its spread is the error
    a, b = (features.double() for features in sets)
    parts = draw_parts(len(a), **COMMON)
    error = jackknife_error(torch.tensor([fid(a[part], b)["fid"] for part in parts]).double(), len(a))
    found = fid(a, b)
    assert found["fid_high"] - found["fid"] == pytest.approx(1.959964 * error, rel=1e-5)
    error = jackknife_error(torch.tensor([unbiased_kid(a[part], b) for part in parts]).double(), len(a))
    found = measure_kid(a, b, **KID)
    error = math.hypot(error, found["kid_std"] / 2)  # 4 subsets
    assert found["kid"] - found["kid_low"] == pytest.approx(1.959964 * error, rel=1e-5)


def test_the_size_of_blocks_does_not_matter(sets, monkeypatch):
    expected = measure_kid(*sets, **KID)
    monkeypatch.setattr(kid, "BLOCK", 7)
    assert measure_kid(*sets, **KID) == pytest.approx(expected, rel=1e-9)


def test_an_interval_of_fid_ends_at_zero_and_that_of_kid_may_reach_below():
    generated, reference = gaussian(12), gaussian(200, seed=1)
    found = fid(generated, reference, num_resamples=60)
    assert found["fid_low"] == 0 < found["fid"] < found["fid_high"]
    found = measure_kid(generated, reference, **{**KID, "subset_size": 12})
    assert found["kid_low"] < 0


def test_three_images_have_no_interval(sets):
    _, reference = sets
    few = gaussian(3)
    found = {**fid(few, reference), **measure_kid(few, reference, **{**KID, "subset_size": 3})}
    assert math.isfinite(found["fid"]) and math.isfinite(found["kid"])
    assert all(math.isnan(found[name]) for name in ("fid_low", "fid_high", "kid_low", "kid_high"))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda g, r: fid(g[:, :4], r), "have 4 features and the reference 6"),
        (lambda g, r: fid(g[:1], r), "at least 2 images are compared, got 1 generated"),
        (lambda g, r: fid(one_bad_value(g, torch.nan), r), "generated images hold a value that is not finite"),
        (lambda g, r: measure_kid(g, one_bad_value(r, torch.inf), **KID), "reference images hold"),
        (lambda g, r: fid(g / 0, r), "generated images hold a value that is not finite"),
        (lambda g, r: fid(g, r / 0), "reference images hold a value that is not finite"),
        (lambda g, r: fid(g, r, num_resamples=1), "fidelity_resamples must be at least 2, got 1"),
        (
            lambda g, r: measure_kid(g, r, **{**KID, "subset_size": 41}),
            "kid_subset_size must be at most .* 40 reference, got 41",
        ),
        (lambda g, r: measure_kid(g, r[:, :2], **KID), "6 features and the reference 2"),
        (lambda g, r: measure_kid(g, r / 0, **KID), "reference images hold"),
    ],
)
def test_what_cannot_be_measured_is_named(sets, call, message):
    with pytest.raises(ValueError, match=message):
        call(*sets)
