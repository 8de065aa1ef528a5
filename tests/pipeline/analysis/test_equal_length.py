"""Equal accepted length: read off by hand, and an interval that covers on simulated curves."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from lantern_pipeline.analysis.equal_length import NoCommonLengthError, compare_at_equal_length


def curve(name: str, forwards: list[list[int]], nll: list[list[float]]) -> pd.DataFrame:
    """One row per method (outer lists) and prompt, images of 12 tokens."""
    rows = [
        {"method_id": f"{name}{m}", "prompt_id": f"p{p}", "num_tokens": 12, "target_forwards": f, "nll": n}
        for m, (fs, ns) in enumerate(zip(forwards, nll, strict=True))
        for p, (f, n) in enumerate(zip(fs, ns, strict=True))
    ]
    return pd.DataFrame(rows)


def test_read_off_by_hand():
    first = curve("a", [[12, 12], [4, 4]], [[1.0, 1.0], [2.0, 2.0]])  # 1 token a forward: 1 nat; 3: 2 nats
    second = curve("b", [[12, 12], [6, 6]], [[1.0, 1.0], [3.0, 3.0]])  # up to 2 tokens a forward: 3 nats
    found = compare_at_equal_length(first, second, num_resamples=50)
    assert (found.shortest, found.longest) == (1, 2)
    # means over lengths 1 to 2: from 1 to 1.5 nats, and from 1 to 3
    assert (found.first, found.second, found.difference) == pytest.approx((1.25, 2.0, -0.75))
    assert (found.low, found.high) == pytest.approx((-0.75, -0.75))  # both prompts say the same


def test_order_of_methods_does_not_matter():
    first = curve("a", [[4, 6], [12, 12]], [[2.0, 2.5], [1.0, 1.0]])
    second = curve("b", [[6, 6]], [[3.0, 2.0]])
    turned = first[::-1]
    assert compare_at_equal_length(first, second, num_resamples=20) == compare_at_equal_length(
        turned, second, num_resamples=20
    )


def test_no_length_in_common():
    slow, fast = curve("a", [[12, 12], [11, 11]], [[1.0] * 2] * 2), curve("b", [[3, 3]], [[1.0, 1.0]])
    with pytest.raises(NoCommonLengthError, match=r"no accepted length in common \(1.00 to 1.09 and 4.00 to 4.00\)"):
        compare_at_equal_length(slow, fast)


def test_other_prompts():
    first, second = curve("a", [[6, 6]], [[1.0, 1.0]]), curve("b", [[6]], [[1.0]])
    with pytest.raises(ValueError, match="same prompts"):
        compare_at_equal_length(first, second)


def test_interval_covers_the_true_difference():
    """80 simulated ablations of 24 prompts, true difference 0.1: a nominal 95 % interval holds it in 67 or more.

    Chance of fewer than 67 hits at a true coverage of 93 % (percentile bootstrap, n = 24): below 1 in 1000.
    """
    generator, hits = np.random.default_rng(0), 0
    for number in range(80):
        level = generator.normal(3.0, 0.3, 24)
        forwards = generator.integers(5, 8, (2, 24)).tolist()
        make = [level + shift + generator.normal(0, 0.2, 24) for shift in (0.1, 0.0)]
        first, second = (curve(name, [f], [n.tolist()]) for name, f, n in zip("ab", forwards, make, strict=True))
        first["target_forwards"] = second["target_forwards"].to_numpy()  # single points of one length
        found = compare_at_equal_length(first, second, num_resamples=150, seed=number)
        hits += found.low <= 0.1 <= found.high
    assert 67 <= hits <= 80
