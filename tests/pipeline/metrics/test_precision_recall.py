import math

import pytest
import torch
from feature_sets import gaussian

from lantern_pipeline.metrics import precision_recall
from lantern_pipeline.metrics.intervals import draw_parts, jackknife_error
from lantern_pipeline.metrics.precision_recall import measure_precision_recall

COMMON = {"num_resamples": 6, "seed": 5}
OPTIONS = {"neighbours": 3, **COMMON}


@pytest.fixture(scope="module")
def sets():
    return gaussian(51), gaussian(40, shift=0.7, seed=1)


def test_precision_counts_generated_images_and_recall_real_ones():
    # the real images fill two clusters, the generated ones one of them: all are plausible, half is missed
    real = torch.cat([gaussian(40), gaussian(40, shift=100.0, seed=1)])
    generated = gaussian(40, seed=2)
    found, other = (
        measure_precision_recall(generated, real, **OPTIONS),
        measure_precision_recall(real, generated, **OPTIONS),
    )
    assert found["precision"] > 0.6 and found["recall"] < 0.55
    assert (other["precision"], other["recall"]) == (found["recall"], found["precision"])


def test_the_interval_of_recall_is_made_of_its_values_on_parts(sets):
    generated, real = sets
    parts = draw_parts(len(generated), **COMMON)
    recalls = [measure_precision_recall(generated[part], real, **OPTIONS)["recall"] for part in parts]
    error = jackknife_error(torch.tensor(recalls, dtype=torch.float64), len(generated))
    found = measure_precision_recall(generated, real, **OPTIONS)
    assert found["recall"] - found["recall_low"] == pytest.approx(1.959964 * error, rel=1e-6)


def test_the_size_of_blocks_does_not_matter(sets, monkeypatch):
    expected = measure_precision_recall(*sets, **OPTIONS)
    monkeypatch.setattr(precision_recall, "BLOCK", 7)
    assert measure_precision_recall(*sets, **OPTIONS) == pytest.approx(expected, rel=1e-9)


def test_parts_of_no_more_images_than_neighbours_give_recall_no_interval(sets):
    found = measure_precision_recall(sets[0][:7], sets[1], **OPTIONS)
    assert math.isfinite(found["recall"]) and math.isnan(found["recall_low"]) and math.isnan(found["recall_high"])
    assert found["precision_low"] < found["precision"] <= found["precision_high"]


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda g, r: measure_precision_recall(g[:3], r, **OPTIONS), "prc_neighbours must be less than .* 3 generated"),
        (lambda g, r: measure_precision_recall(g, r[:3], **OPTIONS), "prc_neighbours must be less than .* 3 reference"),
        (lambda g, r: measure_precision_recall(g, r[:, :2], **OPTIONS), "6 features and the reference 2"),
        (lambda g, r: measure_precision_recall(g, r / 0, **OPTIONS), "reference images hold"),
    ],
)
def test_what_cannot_be_measured_is_named(sets, call, message):
    with pytest.raises(ValueError, match=message):
        call(*sets)
