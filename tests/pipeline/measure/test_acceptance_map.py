import numpy as np
import pytest
import torch

from figure_tables import COUPLED, make_records
from lantern_pipeline.measure.acceptance_map import map_accepted


def records_of(lengths):
    steps = torch.tensor(lengths, dtype=torch.int16)
    return make_records(COUPLED, torch.zeros(len(lengths), 4, dtype=torch.int32), step_lengths=steps)


def test_tokens_before_the_last_of_a_step_are_accepted():
    # steps: [0], [1, 2, 3]; and [0], [1], [2, 3]
    found = map_accepted(records_of([[1, 3, 0, 0], [1, 1, 2, 0]]), grid=2)
    assert found.accepted_share.tolist() == [[0, 0.5], [1, 0]]
    np.testing.assert_equal(found.step_length, [[1, 2], [2, np.nan]])
    assert found.num_images == 2


def test_autoregressive_decoding_accepts_nothing():
    found = map_accepted(records_of([[1, 1, 1, 1]] * 3), grid=2)
    assert not found.accepted_share.any()
    assert (found.step_length == 1).all()


def test_counts_agree_with_a_walk_through_the_steps():
    generator = np.random.default_rng(0)
    lengths = []
    for _ in range(20):
        row = [1]
        while sum(row) < 16:
            row.append(int(min(generator.integers(1, 5), 16 - sum(row))))
        lengths.append(row + [0] * (16 - len(row)))
    accepted, steps = np.zeros(16), [[] for _ in range(16)]
    for row in lengths:
        place = 0
        for length in filter(None, row):
            steps[place].append(length)
            accepted[place : place + length - 1] += 1
            place += length
    records = make_records(COUPLED, torch.zeros(20, 16, dtype=torch.int32), step_lengths=torch.tensor(lengths))
    found = map_accepted(records, grid=4)
    np.testing.assert_allclose(found.accepted_share.ravel(), accepted / 20)
    np.testing.assert_allclose(found.step_length.ravel(), [np.mean(s) if s else np.nan for s in steps])


def test_records_that_do_not_fit_are_rejected():
    with pytest.raises(ValueError, match="grid 3 needs images of 9 tokens, got 1 images of 4"):
        map_accepted(records_of([[1, 3, 0, 0]]), grid=3)
    with pytest.raises(ValueError, match="must sum to its 4 tokens, got sums from 3 to 4"):
        map_accepted(records_of([[1, 3, 0, 0], [1, 2, 0, 0]]), grid=2)
