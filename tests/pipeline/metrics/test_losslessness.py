import math

import pytest
import torch

from lantern_pipeline.metrics.losslessness import compare_with_autoregressive


def planted():
    """Equal; different at 2; different at 1, at a near-tie; different at 1, with a near-tie only later."""
    base = torch.arange(20).view(4, 5)
    codes = base.clone()
    codes[1, 2] = 99
    codes[2, 1:] = 99
    codes[3, [1, 4]] = 99
    margins = torch.ones(4, 5)
    margins[2, 1] = 5e-5
    margins[3, 4] = 5e-5
    margins[0, 0] = 0.0  # a tie that did not change anything
    return codes, base, margins


def test_planted_differences_and_near_ties():
    result = compare_with_autoregressive(*planted(), near_tie_margin=1e-4)
    assert result.is_equal.tolist() == [True, False, False, False]
    assert result.is_near_tie.tolist() == [False, False, True, False]
    assert result.first_difference.tolist() == [5, 2, 1, 1]
    assert result.num_near_ties == 1
    assert result.share_equal == pytest.approx(1 / 3)


def test_margins_where_images_first_differ():
    codes, margins = torch.tensor([[1, 2, 3], [1, 2, 3]]), torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]])
    found = compare_with_autoregressive(torch.tensor([[1, 9, 9], [1, 2, 3]]), codes, margins).margin_at_difference
    assert found[0] == margins[0, 1] and found[1].isnan()


def test_no_margin_excuses_nothing():
    result = compare_with_autoregressive(*planted(), near_tie_margin=0.0)
    assert result.num_near_ties == 0
    assert result.share_equal == pytest.approx(1 / 4)


def test_int32_and_int64_codes_compare():
    codes, base, margins = planted()
    assert compare_with_autoregressive(codes.int(), base, margins).num_near_ties == 1


def test_equal_to_itself():
    codes, _, margins = planted()
    assert compare_with_autoregressive(codes, codes, margins).share_equal == 1.0


def test_share_is_nan_when_every_image_is_excepted():
    codes = torch.tensor([[1, 2]])
    assert math.isnan(compare_with_autoregressive(codes, codes + 1, torch.zeros(1, 2)).share_equal)


def test_shapes_must_agree():
    codes, base, margins = planted()
    with pytest.raises(ValueError, match="one shape"):
        compare_with_autoregressive(codes[:2], base, margins)


def test_a_negative_margin_is_refused():
    with pytest.raises(ValueError, match="near_tie_margin must be >= 0 nats, got -1e-06"):
        compare_with_autoregressive(*planted(), near_tie_margin=-1e-6)
