"""The noise field as a pure function of (run seed, prompt id, stream, position, code)."""

from __future__ import annotations

import pytest
import torch

from lantern.noise import MAX_SIBLINGS, NoiseField, gumbel_field, uniform_field


def test_noise_is_a_function_of_seed_id_stream_position_and_code():
    base = gumbel_field(1, "a", "target", 8, 16)
    assert torch.equal(base, gumbel_field(1, "a", "target", 8, 16))
    assert torch.equal(base[:3], gumbel_field(1, "a", "target", 3, 16))
    for other in (gumbel_field(2, "a", "target", 8, 16), gumbel_field(1, "b", "target", 8, 16)):
        assert not torch.isclose(base, other).any()
    assert not torch.isclose(base, gumbel_field(1, "a", "draft", 8, 16)).any()


def test_noise_of_a_batch_is_that_of_its_images():
    noise = NoiseField(3, ["x", "y"], 6, 5)
    read = noise.gumbel("target", torch.tensor([[0, 2], [5, 9]]))  # position 9 is clamped to the last, 5
    assert torch.equal(read[0, 1], gumbel_field(3, "x", "target", 6, 5)[2])
    assert torch.equal(read[1, 0], gumbel_field(3, "y", "target", 6, 5)[5])
    assert torch.equal(read[1, 0], read[1, 1])


@pytest.mark.parametrize("num_slots", [1, 7, MAX_SIBLINGS])
def test_uniform_noise_does_not_depend_on_the_number_of_slots_read(num_slots):
    noise = NoiseField(3, ["x", "y"], 6, 5)
    read = noise.uniform(torch.tensor([[1, 4], [0, 5]]), num_slots)
    assert read.shape == (2, 2, num_slots)
    for row, (prompt_id, positions) in enumerate({"x": [1, 4], "y": [0, 5]}.items()):
        field = torch.from_numpy(uniform_field(3, prompt_id, "accept", 6, 64)).float()
        for column, position in enumerate(positions):
            assert read[row, column].tolist() == [field[position, slot] for slot in range(num_slots)]


def test_noise_has_the_moments_of_its_law():
    """A million draws: mean of uniforms within 5 standard errors (odds of failing 1 in 2 million), and Gumbel-max
    samples."""
    uniform = uniform_field(0, "p", "target", 1000, 1000)
    assert abs(uniform.mean() - 0.5) < 5 * (1 / 12) ** 0.5 / 1000
    assert uniform.min() > 0
    assert uniform.max() < 1
    probs = torch.tensor([0.5, 0.3, 0.2])
    drawn = (probs.log() + gumbel_field(0, "p", "target", 100_000, 3)).argmax(1)
    share = torch.bincount(drawn, minlength=3) / 100_000
    assert ((share - probs).abs() < 5 * (probs * (1 - probs) / 100_000).sqrt()).all()
