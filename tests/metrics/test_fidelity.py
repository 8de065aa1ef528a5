import numpy as np
import pandas as pd
import pytest
import scipy.linalg
import torch
from torch_fidelity import calculate_metrics

from lantern.metrics.features import (
    EXTRACTOR_NAME,
    ImageTensors,
    extract_features,
    feature_scale,
    register_recogniser,
    to_float,
    to_uint8,
)
from lantern.metrics.fidelity import measure_fidelity, standard_errors
from lantern.models.recogniser import Recogniser, RecogniserConfig, save_model

METRICS = ("fid", "kid", "precision", "recall")
OPTIONS = {"kid_subset_size": 20, "kid_subsets": 5, "prc_neighbours": 3}


def gaussian(n, shift=0.0, seed=0, width=6):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, width, generator=generator) @ torch.diag(torch.arange(1.0, width + 1)) + shift


@pytest.fixture(scope="module")
def recogniser():
    torch.manual_seed(0)
    return Recogniser(RecogniserConfig(width=8, num_features=16)).eval()


@pytest.fixture(scope="module")
def images():
    generator = torch.Generator().manual_seed(0)
    return torch.rand(60, 3, 48, 48, generator=generator) * 2 - 1


def test_fid_is_the_formula_of_two_gaussians():
    a, b = gaussian(200).double(), gaussian(150, shift=1.5, seed=1).double()
    mean_a, mean_b, cov_a, cov_b = a.mean(0), b.mean(0), np.cov(a.T), np.cov(b.T)
    root = scipy.linalg.sqrtm(cov_a @ cov_b).real
    expected = float(((mean_a - mean_b) ** 2).sum()) + np.trace(cov_a + cov_b - 2 * root)
    assert measure_fidelity(a, b, **OPTIONS)["fid"] == pytest.approx(expected, rel=1e-6)


def test_kid_is_the_unbiased_cubic_mmd_of_the_whole_set():
    a, b = gaussian(20).double(), gaussian(20, shift=1.0, seed=1).double()

    def kernel(x, y):
        return (x @ y.T / x.shape[1] + 1) ** 3

    n = 20
    within = (kernel(a, a).sum() - kernel(a, a).trace() + kernel(b, b).sum() - kernel(b, b).trace()) / (n * (n - 1))
    expected = float(within - 2 * kernel(a, b).mean())
    assert measure_fidelity(a, b, **OPTIONS)["kid"] == pytest.approx(expected, rel=1e-9)


def test_precision_and_recall_tell_generated_from_real():
    # the reference fills two clusters; generated images fill one: all are plausible, half of the reference is missed
    reference = torch.cat([gaussian(40), gaussian(40, shift=100.0, seed=1)])
    generated = gaussian(40, seed=2)
    result = measure_fidelity(generated, reference, **OPTIONS)
    assert result["precision"] > 0.6
    assert result["recall"] < 0.55
    other = measure_fidelity(reference, generated, **OPTIONS)
    assert other["precision"] == pytest.approx(result["recall"])
    assert other["recall"] == pytest.approx(result["precision"])


def test_a_set_against_itself():
    result = measure_fidelity(gaussian(50), gaussian(50), **OPTIONS)
    assert result["fid"] == pytest.approx(0.0, abs=1e-5)
    assert (result["precision"], result["recall"]) == (1.0, 1.0)


def test_fewer_images_than_features_still_gives_a_number():
    result = measure_fidelity(gaussian(25, width=40), gaussian(25, width=40, seed=1), **OPTIONS)
    assert np.isfinite(list(result.values())).all()
    for name in METRICS:
        assert result[f"{name}_low"] <= result[name] <= result[f"{name}_high"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kid_subset_size": 51}, "kid_subset_size must be at most"),
        ({"num_resamples": 1}, "fidelity_resamples must be at least 2"),
        ({"prc_neighbours": 50}, "prc_neighbours must be less"),
    ],
)
def test_settings_beyond_the_number_of_images_name_their_key(change, message):
    with pytest.raises(ValueError, match=message):
        measure_fidelity(gaussian(50), gaussian(60), **{**OPTIONS, **change})


def test_nan_features_are_rejected():
    bad = gaussian(50)
    bad[3, 2] = torch.nan
    with pytest.raises(ValueError, match="generated images hold"):
        measure_fidelity(bad, gaussian(50), **OPTIONS)


def test_interval_covers_what_this_many_images_have_on_average():
    # The truth of each metric is its mean over 400 further sets of 48 images. At a true coverage of 0.95, fewer than 88
    # hits of 100 would come up less than once in 600 times. Intervals of FID are wider than they need to be.
    reference, options = gaussian(200, seed=1).double(), {**OPTIONS, "num_resamples": 60}

    def sets(count, first):
        return [gaussian(48, shift=0.5, seed=first + i) * 0.9 for i in range(count)]

    few = {**options, "num_resamples": 2}
    truth = pd.DataFrame([measure_fidelity(x, reference, **few) for x in sets(400, 1000)]).mean()
    found = pd.DataFrame([measure_fidelity(x, reference, **options) for x in sets(100, 5000)])
    for name in METRICS:
        hits = ((found[f"{name}_low"] <= truth[name]) & (truth[name] <= found[f"{name}_high"])).sum()
        assert hits >= 88, (name, hits)


def test_fewer_images_than_features_do_not_blow_up_the_error_of_fid():
    # the spread of FID over 60 further sets; a bootstrap's error is several times that, since resamples differ in rank
    reference = gaussian(200, seed=1, width=64).double()
    sets = [gaussian(48, seed=100 + i, width=64).double() for i in range(60)]
    spread = np.std([measure_fidelity(x, reference, **{**OPTIONS, "num_resamples": 2})["fid"] for x in sets])
    errors = [standard_errors(x, reference, 3, 60, 0)["fid"] for x in sets[:10]]
    assert 0.7 * spread < np.mean(errors) < 1.6 * spread


def test_errors_are_of_the_metrics_themselves():
    # two halves of the images, measured by torch-fidelity: their spread, for half of the images left out, is the error
    a, b = gaussian(40).double(), gaussian(60, shift=1.0, seed=1).double()
    halves = torch.rand(2, 40, generator=torch.Generator().manual_seed(7)).argsort(dim=1)[:, :20]
    values = pd.DataFrame([measure_fidelity(a[half], b, **OPTIONS) for half in halves])
    errors = standard_errors(a, b, 3, 2, 7)
    for name in ("fid", "recall"):
        assert errors[name] == pytest.approx(values[name].std(), rel=1e-6), name


def test_too_few_images_have_no_interval():
    result = measure_fidelity(gaussian(6), gaussian(20, seed=1), **{**OPTIONS, "kid_subset_size": 5})
    assert np.isfinite([result[name] for name in METRICS]).all()
    assert np.isnan([result[f"{name}{end}"] for name in ("fid", "kid", "recall") for end in ("_low", "_high")]).all()
    assert result["precision_low"] < result["precision"]


def test_standardised_features_have_mean_zero_and_spread_one():
    features = torch.cat([gaussian(100, shift=3.0), torch.full((100, 1), 2.0)], dim=1)
    mean, std = feature_scale(features)
    scaled = (features - mean) / std
    assert scaled.mean(0).abs().max() < 1e-5
    assert scaled[:, :-1].std(0).tolist() == pytest.approx([1.0] * 6, abs=1e-5)
    assert scaled[:, -1].abs().max() == 0  # a constant feature says nothing, and breaks nothing


def test_images_survive_the_way_to_8_bits():
    levels = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(to_uint8(to_float(levels)), levels)


def test_the_registered_extractor_gives_the_same_numbers_through_torch_fidelity_itself(recogniser, images, tmp_path):
    save_model(tmp_path / "recogniser.safetensors", recogniser)
    generated, reference = images[:28], images[28:]
    raw = extract_features(recogniser, reference, batch_size=10)
    mean, std = feature_scale(raw)
    ours = measure_fidelity((extract_features(recogniser, generated) - mean) / std, (raw - mean) / std, **OPTIONS)
    theirs = calculate_metrics(
        input1=ImageTensors(generated),
        input2=ImageTensors(reference),
        feature_extractor=register_recogniser(),
        feature_extractor_weights_path=str(tmp_path / "recogniser.safetensors"),
        feature_mean=mean,
        feature_std=std,
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
    assert register_recogniser() == register_recogniser() == EXTRACTOR_NAME
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


def test_features_do_not_depend_on_the_batch(recogniser, images):
    whole = extract_features(recogniser, images[:20], batch_size=20)
    parts = extract_features(recogniser, images[:20], batch_size=7)
    assert torch.allclose(whole, parts, atol=1e-5)
