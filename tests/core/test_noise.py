"""Tests of the noise field as a pure function of (run seed, prompt id, stream, position, code)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lantern import noise as noise_module
from lantern import philox
from lantern.noise import (
    DRAFT,
    SLOT_BLOCK,
    TARGET,
    ImageNoise,
    NoiseField,
    Uniform,
    choose_window,
    gumbel_field,
    uniform_field,
)
from lantern.philox import raw_bits

ACCEPT, REDRAW = Uniform("accept", 64), Uniform("redraw", 1)
STREAMS = (TARGET, DRAFT, ACCEPT)


def test_noise_is_a_function_of_seed_id_stream_position_and_code():
    base = gumbel_field(1, "a", "target", 8, 16)
    assert torch.equal(base, gumbel_field(1, "a", "target", 8, 16))
    assert torch.equal(base[:3], gumbel_field(1, "a", "target", 3, 16))
    for other in (gumbel_field(2, "a", "target", 8, 16), gumbel_field(1, "b", "target", 8, 16)):
        assert not torch.isclose(base, other).any()
    assert not torch.isclose(base, gumbel_field(1, "a", "draft", 8, 16)).any()


@pytest.mark.parametrize("first", [1, 2, 5])
def test_noise_of_a_position_does_not_depend_on_where_one_begins(first):
    """Rows of 7 values begin inside a counter step, which gives four values."""
    assert torch.equal(gumbel_field(1, "a", "target", 3, 7, first), gumbel_field(1, "a", "target", 8, 7)[first:][:3])


def test_noise_is_finite_at_the_largest_raw_values(monkeypatch):
    """2^53 - 0.5 is no double. The largest uniform would be 1, and its Gumbel noise infinite."""

    class Largest:
        def __init__(self, **_):
            pass

        def advance(self, _):
            pass

        def random_raw(self, count):
            return np.full(count, 2**64 - 1, np.uint64)

    monkeypatch.setattr(np.random, "Philox", Largest)
    assert (uniform_field(0, "p", "target", 1, 3) == 1 - 2.0**-53).all()
    assert gumbel_field(0, "p", "target", 1, 3).isfinite().all()


@pytest.mark.parametrize("begin", [0, 5, 2**33 + 3])
def test_a_device_makes_the_bits_of_numpys_generator(begin):
    for key in ((0, 0), (2**64 - 1, 2**63), (0x0123456789ABCDEF, 0xFEDCBA9876543210)):
        generator = np.random.Philox(key=np.array(key, dtype=np.uint64))
        generator.advance(begin // 4)
        expected = generator.random_raw(begin % 4 + 1001)[begin % 4 :]
        assert np.array_equal(raw_bits(key, begin, begin + 1001, "cpu").numpy().view(np.uint64), expected)


@pytest.mark.parametrize("stream", STREAMS)
def test_a_device_makes_the_noise_that_numpy_makes(stream, monkeypatch):
    expected = ImageNoise(3, "x", STREAMS, 40, 1001).read(stream, 3, 40)
    monkeypatch.setattr(noise_module, "is_made_by", lambda device: True)
    monkeypatch.setattr(philox, "VALUES_AT_ONCE", 10_000)
    assert torch.equal(ImageNoise(3, "x", STREAMS, 40, 1001).read(stream, 3, 40), expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("stream", STREAMS)
def test_a_gpu_makes_the_noise_that_numpy_makes(stream):
    """A logarithm may round differently once in 10^9 values."""
    expected = ImageNoise(3, "x", STREAMS, 64, 16384).read(stream, 3, 64)
    found = ImageNoise(3, "x", STREAMS, 64, 16384, device="cuda").read(stream, 3, 64).cpu()
    assert (found != expected).sum() <= 3
    torch.testing.assert_close(found, expected)


def test_a_device_makes_finite_noise_of_the_largest_bits(monkeypatch):
    monkeypatch.setattr(philox, "raw_bits", lambda key, begin, end, device: torch.full((end - begin,), -1))
    assert philox.noise_values((0, 0), 0, 3, "cpu", is_gumbel=True).isfinite().all()


def make_field(num_rows, *ids, window=None, made=6):
    noise = NoiseField(num_rows, 6, 5, STREAMS, window=window)
    noise.fill(range(len(ids)), [ImageNoise(3, i, STREAMS, made, 5) for i in ids])
    return noise


def test_noise_of_a_batch_is_that_of_its_images():
    noise = make_field(2, "x", "y")
    read = noise.gumbel(TARGET, torch.tensor([[0, 2], [5, 9]]))  # position 9 is clamped to the last, 5
    assert torch.equal(read[0, 1], gumbel_field(3, "x", "target", 6, 5)[2])
    assert torch.equal(read[1, 0], gumbel_field(3, "y", "target", 6, 5)[5])
    assert torch.equal(read[1, 0], read[1, 1])


@pytest.mark.parametrize("num_slots", [1, 7, 64])
def test_uniform_noise_does_not_depend_on_the_number_of_slots_read(num_slots):
    noise = make_field(2, "x", "y")
    read = noise.uniform(ACCEPT, torch.tensor([[1, 4], [0, 5]]), num_slots)
    assert read.shape == (2, 2, num_slots)
    for row, (prompt_id, positions) in enumerate({"x": [1, 4], "y": [0, 5]}.items()):
        field = torch.from_numpy(uniform_field(3, prompt_id, "accept", 6, 64)).float()
        for column, position in enumerate(positions):
            assert read[row, column].tolist() == [field[position, slot] for slot in range(num_slots)]


def test_noise_that_was_made_is_not_made_again(monkeypatch):
    image = ImageNoise(3, "x", STREAMS, 4, 5)
    later = image.read(TARGET, 2, 5)
    monkeypatch.setattr(noise_module, "gumbel_field", None)
    assert torch.equal(image.read(TARGET, 0, 4), gumbel_field(3, "x", "target", 4, 5))
    assert torch.equal(later, gumbel_field(3, "x", "target", 5, 5)[2:])
    with pytest.raises(TypeError):
        image.read(TARGET, 0, 5)


@pytest.mark.parametrize("made", [3, 6])
def test_a_window_of_positions_holds_the_same_noise(made):
    """Batch rows are at different positions, and one changes its image. Noise is made in advance or when read."""
    whole, part = make_field(2, "x", "y"), make_field(2, "x", "y", window=3, made=made)
    lengths = [0, 0]
    for steps in ([1, 2], [2, 1], [1, -4], [2, 4], [0, 2], [0, 1]):
        lengths = [length + step for length, step in zip(lengths, steps, strict=True)]
        if steps[1] == -4:
            lengths[1] = 0
            for noise in (whole, part):
                noise.fill([1], [ImageNoise(3, "z", STREAMS, made if noise is part else 6, 5)])
        assert part.advance(torch.tensor(lengths), 2) == 1 and whole.advance(torch.tensor(lengths), 2) == 6
        positions = torch.tensor(lengths)[:, None] + torch.arange(3)
        for stream in (TARGET, DRAFT):
            assert torch.equal(whole.gumbel(stream, positions), part.gumbel(stream, positions))
        assert torch.equal(whole.uniform(ACCEPT, positions, 4), part.uniform(ACCEPT, positions, 4))
    assert lengths == [6, 7] and part.prompt_ids == ["x", "z"]


def test_windows_are_for_fields_beyond_32_mib():
    assert choose_window(256, 16384) == 256
    assert choose_window(1024, 8192) == 1024
    assert choose_window(1024, 16384) == 64
    assert len(ImageNoise(0, "p", [ACCEPT], 1024, 16384).read(ACCEPT, 0, 64)) == 64
    assert NoiseField(1, 1024, 16384, []).window == 64
    assert choose_window(1024, 16384, "cuda") == 1024  # a GPU makes and holds more
    assert choose_window(8190, 32768, "cuda") == 1024


def test_noise_has_the_moments_of_its_law():
    """A million samples: the mean of uniforms is within 5 standard errors (odds of failing: 1 in 2 million).

    Gumbel-max samples are tested as well.
    """
    uniform = uniform_field(0, "p", "target", 1000, 1000)
    assert abs(uniform.mean() - 0.5) < 5 * (1 / 12) ** 0.5 / 1000
    assert uniform.min() > 0
    assert uniform.max() < 1
    probs = torch.tensor([0.5, 0.3, 0.2])
    drawn = (probs.log() + gumbel_field(0, "p", "target", 100_000, 3)).argmax(1)
    share = torch.bincount(drawn, minlength=3) / 100_000
    assert ((share - probs).abs() < 5 * (probs * (1 - probs) / 100_000).sqrt()).all()


class SameEverywhere:
    """Noise of an image with one value at all positions and codes."""

    prompt_id = "same"

    def __init__(self, value: float) -> None:
        self.value = value

    def read(self, stream: Uniform, begin: int, end: int) -> torch.Tensor:
        return torch.full((end - begin, SLOT_BLOCK), self.value)


def draw_with(value: float, probs: torch.Tensor) -> int:
    """Return the code that a uniform number samples from a distribution, (vocab,)."""
    noise, place = NoiseField(1, 1, len(probs), [REDRAW]), torch.zeros(1, 1, dtype=torch.int64)
    noise.fill([0], [SameEverywhere(value)])
    assert noise.fresh(REDRAW, place, place) < 1  # though float32 rounds the largest numbers to 1
    return int(noise.sample(REDRAW, probs[None, None], place, place))


def test_a_uniform_number_draws_the_code_whose_share_holds_it():
    probs = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0])
    assert [draw_with(value, probs) for value in (1e-9, 0.499, 0.5, 0.999, 1.0)] == [1, 1, 3, 3, 3]
    assert draw_with(0.5, torch.zeros(5)) == 4  # without mass, the last code


def test_shares_that_float32_would_lose_beside_a_large_one_are_drawn():
    """A hundred codes of probability 1e-8 follow one of almost 1, where float32 cannot resolve them."""
    probs = torch.cat([torch.ones(1), torch.full((100,), 1e-8)])
    for steps in range(1, 16):
        value = 1 - steps * 2.0**-24
        assert abs(draw_with(value, probs) - (value * (1 + 1e-6) - 1) / 1e-8) <= 1.5
