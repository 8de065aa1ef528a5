"""The statistics of audits, against scipy and against samplers of known distance."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import chi2, chisquare, ncx2

from lantern_audit import statistics
from lantern_audit.statistics import (
    chi_square,
    detectable_noncentrality,
    noncentral_upper_tail,
    total_variation,
    upper_tail,
)

PROBS = torch.tensor([0.0, 0.4, 0.3, 0.2, 0.06, 0.03, 0.009, 0.001], dtype=torch.float64)


def count(probs: torch.Tensor, num: int, seed: int, folds: int = 1) -> torch.Tensor:
    """Return the counts of samples, (folds, 1, cells)."""
    generator = torch.Generator().manual_seed(seed)
    samples = torch.multinomial(probs, folds * num, replacement=True, generator=generator).view(folds, num)
    return torch.stack([row.bincount(minlength=len(probs)) for row in samples])[:, None]


@pytest.mark.parametrize("num", [200, 10_000])
def test_the_chi_square_is_scipys_on_pooled_cells(num):
    counts = count(PROBS, num, seed=0)[0]
    found = chi_square(counts, PROBS[None])
    expected = PROBS * num
    is_kept = expected >= 5
    if expected[~is_kept].sum() < 5:  # the rare cells together are too rare
        is_kept[expected.masked_fill(~is_kept, math.inf).argmin()] = False
    cells = [torch.cat([part[is_kept], part[~is_kept].sum()[None]]) for part in (counts[0].double(), expected)]
    reference = chisquare(*cells)
    assert found.df == len(cells[0]) - 1
    assert found.statistic == pytest.approx(reference.statistic) and found.p_value == pytest.approx(reference.pvalue)


def test_groups_add_up():
    counts, probs = count(PROBS, 500, seed=1)[0], PROBS[None]
    one, two = chi_square(counts, probs), chi_square(counts.repeat(2, 1), probs.repeat(2, 1))
    assert two.statistic == pytest.approx(2 * one.statistic) and two.df == 2 * one.df


def test_something_impossible_has_the_p_value_0():
    found = chi_square(torch.tensor([[1, 400, 300, 200, 60, 30, 9, 0]]), PROBS[None])
    assert (
        found.p_value == 0 and found.df == chi_square(torch.tensor([[0, 400, 300, 200, 60, 30, 9, 0]]), PROBS[None]).df
    )


def test_too_few_samples_are_named():
    with pytest.raises(ValueError, match=r"at least 5 expected counts, got 1 of 4 counts"):
        chi_square(torch.tensor([[0, 2, 2, 0, 0, 0, 0, 0]]), PROBS[None])


@pytest.mark.parametrize("df", [1, 500])
def test_tails_and_noncentralities_are_scipys(df):
    for value in (0.5 * df, df, 2.0 * df):
        assert upper_tail(value, df) == pytest.approx(chi2.sf(value, df), rel=1e-9)
        for noncentrality in (0.3, 5.0, 80.0):
            found = noncentral_upper_tail(value, df, noncentrality)
            assert found == pytest.approx(ncx2.sf(value, df, noncentrality), rel=1e-6)
    found = detectable_noncentrality(df, 0.001, 0.9)
    assert ncx2.sf(chi2.isf(0.001, df), df, found) == pytest.approx(0.9, abs=1e-5)


def test_the_weights_of_a_large_noncentrality_add_up_to_1():
    assert noncentral_upper_tail(0.0, 4, 1234.6) == pytest.approx(1, rel=1e-9)


def test_the_smallest_bias_is_found_as_often_as_stated():
    """A bias that moves every cell by the same proportion, the hardest to find of its total variation."""
    num, probs = 2000, torch.full((20,), 0.05, dtype=torch.float64)
    bias = math.sqrt(detectable_noncentrality(19, 0.001, 0.9) / num) / 2
    biased = probs * (1 + 2 * bias * torch.tensor([1.0, -1.0]).repeat(10))
    assert float((biased - probs).abs().sum() / 2) == pytest.approx(bias)
    p_values = [chi_square(count(biased, num, seed)[0], probs[None]).p_value for seed in range(300)]
    assert 0.84 < sum(p < 0.001 for p in p_values) / 300 < 0.96


def test_total_variation_is_0_for_an_exact_sampler_and_close_to_that_of_another(monkeypatch):
    monkeypatch.setattr(statistics, "NUM_RESAMPLES", 50)  # 30 repeats need no precise interval each
    probs = torch.rand(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    probs /= probs.sum()
    biased = probs.roll(100) * 0.3 + probs * 0.7
    expected = float((biased - probs).abs().sum() / 2)
    exact, found = (
        [total_variation(count(distribution, 4000, seed, folds=10), probs[None]) for seed in range(30)]
        for distribution in (probs, biased)
    )
    assert sum(interval.low == 0 for interval in exact) >= 27  # 29 are expected
    mean = sum(interval.value for interval in found) / 30
    assert 0.09 < expected < 0.13 and 0.9 * expected < mean < expected
    assert sum(interval.low < expected for interval in found) >= 28
    below = sum(interval.value - interval.low for interval in found) / 30
    spread = torch.tensor([interval.value for interval in found]).std()
    assert below / 1.96 == pytest.approx(float(spread), rel=0.4)


SMALL, LARGE = (torch.arange(1, num + 1, dtype=torch.float64) ** -0.5 for num in (8, 200))
LAWS = {  # weights of the cells: of the target, and of a sampler
    "exact, few cells": (SMALL, SMALL),
    "exact, many cells": (LARGE, LARGE),
    "all of few cells": (SMALL, SMALL * torch.tensor([1.1, 0.9]).repeat(4)),
    "all of many cells": (LARGE, LARGE * torch.tensor([1.2, 0.8]).repeat(100)),
    "one frequent cell": (LARGE, LARGE + 2 * (torch.arange(200) == 0)),
    "rare cells": (LARGE, LARGE * (torch.arange(200) < 100)),
    "an impossible cell": (SMALL * (torch.arange(8) < 7), SMALL),
    "far away": (LARGE, LARGE.flip(0)),
}


@pytest.mark.parametrize(
    ("law", "num"),
    [
        pytest.param(law, num, marks=[] if num == 100 + 900 * (place % 2) and place < 6 else pytest.mark.slow)
        for place, law in enumerate(LAWS)
        for num in (100, 1000)
    ],
)
def test_the_interval_holds_the_total_variation(law, num, monkeypatch):
    monkeypatch.setattr(statistics, "NUM_RESAMPLES", 40)
    probs, emitted = (weights / weights.sum() for weights in LAWS[law])
    truth = float((emitted - probs).abs().sum() / 2)
    found = [total_variation(count(emitted, num, seed, folds=10), probs[None]) for seed in range(50)]
    assert sum(interval.low <= truth <= interval.high for interval in found) >= 46
    assert all(interval.low <= interval.value <= interval.high <= 1 for interval in found)


def test_the_interval_holds_the_mean_over_groups(monkeypatch):
    monkeypatch.setattr(statistics, "NUM_RESAMPLES", 40)
    names = ("exact, many cells", "all of many cells", "rare cells")
    probs, emitted = (torch.stack([LAWS[name][part] / LAWS[name][part].sum() for name in names]) for part in (0, 1))
    truth = float((emitted - probs).abs().sum() / 2 / 3)
    hits = 0
    for seed in range(30):
        counts = torch.cat([count(row, 500, 3 * seed + group, 10) for group, row in enumerate(emitted)], dim=1)
        found = total_variation(counts, probs)
        hits += found.low <= truth <= found.high
    assert hits >= 28
