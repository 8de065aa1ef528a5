import math

import pytest
import torch

from lantern_pipeline.metrics.losslessness import compare_with_autoregressive


def planted():
    """Equal; different at 2; different at 1, at a near-tie; different at 1, with a near-tie only later."""
    base = torch.arange(20).view(4, 5)
    codes, margins = base.clone(), torch.ones(4, 5)
    codes[1, 2] = 99
    codes[2, 1:] = 99
    codes[3, [1, 4]] = 99
    margins[2, 1] = margins[3, 4] = 5e-5
    margins[0, 0] = 0.0  # a tie that did not change anything
    return codes, base, margins


def test_planted_differences_and_near_ties():
    codes, base, margins = planted()
    for found in (
        compare_with_autoregressive(kind, base, margins, near_tie_margin=1e-4) for kind in (codes, codes.int())
    ):
        assert found.is_equal.tolist() == [True, False, False, False]
        assert found.is_near_tie.tolist() == [False, False, True, False] and found.num_near_ties == 1
        assert found.first_difference.tolist() == [5, 2, 1, 1]
        assert found.margin_at_difference[1:].tolist() == [margins[1, 2], margins[2, 1], margins[3, 1]]
        assert found.margin_at_difference[0].isnan()
        assert found.share_equal == pytest.approx(1 / 3)
    strict = compare_with_autoregressive(codes, base, margins, near_tie_margin=0.0)  # excuses nothing
    assert strict.num_near_ties == 0 and strict.share_equal == pytest.approx(1 / 4)
    assert compare_with_autoregressive(codes, codes, margins).share_equal == 1.0
    excepted = compare_with_autoregressive(codes[:1], codes[:1] + 1, torch.zeros(1, 5))
    assert math.isnan(excepted.share_equal)


def test_bad_input_is_named():
    codes, base, margins = planted()
    with pytest.raises(ValueError, match="one shape"):
        compare_with_autoregressive(codes[:2], base, margins)
    with pytest.raises(ValueError, match="near_tie_margin must be >= 0 nats, got -1e-06"):
        compare_with_autoregressive(codes, base, margins, near_tie_margin=-1e-6)
