"""FID, KID, precision and recall at the scale of photographs: the same numbers as the embedded world's code gives."""

import math

import pytest
import torch

from lantern.metrics import coverage, inception_distance
from lantern.metrics.coverage import measure_coverage
from lantern.metrics.fidelity import measure_fidelity, standard_errors
from lantern.metrics.halves import draw_halves, halves_error
from lantern.metrics.inception_distance import Gaussian, measure_fid, measure_kid

COMMON = {"num_resamples": 6, "seed": 5}
KID = {"subset_size": 20, "num_subsets": 4, **COMMON}


def gaussian(n, shift=0.0, seed=0, width=6):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, width, generator=generator) * torch.arange(1.0, width + 1) + shift


@pytest.fixture(scope="module")
def sets():
    return gaussian(51), gaussian(40, shift=0.7, seed=1)


@pytest.fixture(scope="module")
def expected(sets):
    settings = {"kid_subset_size": 20, "kid_subsets": 4, "prc_neighbours": 3}
    return measure_fidelity(*sets, **settings, **COMMON)


def measure(generated, reference):
    return {
        **measure_fid(generated, Gaussian.of(reference), **COMMON),
        **measure_kid(generated, reference, **KID),
        **measure_coverage(generated, reference, neighbours=3, **COMMON),
    }


def test_values_and_intervals_are_those_of_the_embedded_worlds_code(sets, expected):
    found = measure(*sets)
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-6, abs=1e-9), name


def test_the_size_of_blocks_does_not_matter(sets, expected, monkeypatch):
    monkeypatch.setattr(inception_distance, "BLOCK", 7)
    monkeypatch.setattr(coverage, "BLOCK", 7)
    assert measure(*sets) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_stored_statistics_give_the_same_fid(sets):
    generated, reference = sets
    stored = Gaussian(reference.double().mean(dim=0), torch.cov(reference.double().T))
    assert measure_fid(generated, stored, **COMMON)["fid"] == pytest.approx(
        measure_fid(generated, Gaussian.of(reference), **COMMON)["fid"], rel=1e-9
    )


def test_fewer_images_than_features_still_give_a_number():
    found = measure_fid(gaussian(12, width=30), Gaussian.of(gaussian(12, width=30, seed=1)), **COMMON)
    assert all(math.isfinite(value) for value in found.values()) and found["fid_low"] < found["fid"] < found["fid_high"]


def test_precision_counts_generated_images_and_recall_real_ones():
    # the real images fill two clusters, the generated ones one of them: all are plausible, half is missed
    real = torch.cat([gaussian(40), gaussian(40, shift=100.0, seed=1)])
    found = measure_coverage(gaussian(40, seed=2), real, neighbours=3, **COMMON)
    assert found["precision"] > 0.6 and found["recall"] < 0.55


def test_the_error_of_a_mean_is_found_from_halves():
    values = torch.randn(400, generator=torch.Generator().manual_seed(0)).double()
    halves = draw_halves(400, 3000, seed=1)
    assert all(len(set(half.tolist())) == 200 for half in halves[:5])
    assert halves_error(values[halves].mean(dim=1), 400) == pytest.approx(float(values.std()) / 20, rel=0.06)
    assert standard_errors(gaussian(30).double(), gaussian(30, seed=1).double(), 3, 4, 0)["fid"] > 0


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda g, r: measure_fid(g[:, :4], Gaussian.of(r), **COMMON), "have 4 features and the reference 6"),
        (lambda g, r: measure_fid(g[:3], Gaussian.of(r), **COMMON), "at least 4 generated images, got 3"),
        (lambda g, r: measure_fid(g / 0, Gaussian.of(r), **COMMON), "not finite"),
        (lambda g, r: measure_fid(g, Gaussian.of(r), num_resamples=1, seed=0), "fidelity_resamples must be at least 2"),
        (
            lambda g, r: measure_kid(g, r, **{**KID, "subset_size": 41}),
            "kid_subset_size must be at most .* 40 reference",
        ),
        (lambda g, r: measure_coverage(g[:7], r, neighbours=3, **COMMON), "prc_neighbours must be less than half"),
        (lambda g, r: measure_coverage(g, r[:, :2], neighbours=3, **COMMON), "6 features and the reference 2"),
        (lambda g, r: measure_coverage(g, r / 0, neighbours=3, **COMMON), "reference images hold"),
    ],
)
def test_what_cannot_be_measured_is_named(sets, call, message):
    with pytest.raises(ValueError, match=message):
        call(*sets)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_same_numbers(sets, expected):
    generated, reference = sets[0], sets[1].cuda()
    assert measure(generated, reference) == pytest.approx(expected, rel=1e-6, abs=1e-9)
