import pytest
import torch

from lantern_pipeline.metrics.halves import draw_halves, halves_error


def test_the_error_of_a_mean_is_found_from_halves():
    values = torch.randn(400, generator=torch.Generator().manual_seed(0)).double()
    halves = draw_halves(400, 3000, seed=1)
    assert all(len(set(half.tolist())) == 200 for half in halves[:5])
    assert halves_error(values[halves].mean(dim=1), 400) == pytest.approx(float(values.std()) / 20, rel=0.06)


def test_an_odd_image_is_left_out_and_counted_as_left_out():
    values = torch.randn(15, generator=torch.Generator().manual_seed(0)).double()
    halves = draw_halves(15, 40000, seed=1)
    assert halves.shape == (40000, 7)
    assert halves_error(values[halves].mean(dim=1), 15) == pytest.approx(float(values.std()) / 15**0.5, rel=0.02)
