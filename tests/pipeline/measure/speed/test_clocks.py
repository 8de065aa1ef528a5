"""Tests of the clocks of all measurements."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from lantern_pipeline.measure.speed import clocks
from lantern_pipeline.measure.speed.clocks import EnoughSteps, PartClock, clock, time_blocks

CPU = torch.device("cpu")


@pytest.fixture
def wall(monkeypatch):
    """Replace the clock by a number that a test moves on."""
    wall = SimpleNamespace(now=0.0)
    monkeypatch.setattr(clocks, "time", SimpleNamespace(perf_counter=lambda: wall.now))
    return wall


def test_blocks_follow_a_warm_up_and_their_median_counts(wall):
    durations = iter([0.3, 0.3, *[1.0, 3.0], *[4.0, 6.0], *[2.0, 4.0]])  # warm-up, then three blocks of two calls

    def call():
        wall.now += next(durations)

    assert time_blocks(call, CPU, 2, num_blocks=3) == pytest.approx((3.0, 2.0, 5.0))
    assert next(durations, None) is None


def test_a_clock_adds_up_blocks_of_one_name(wall):
    seconds = {}
    for duration in (1.0, 2.0):
        with clock(seconds, "steps_s", CPU):
            wall.now += duration
    assert seconds == {"steps_s": 3.0}


def test_a_step_is_divided_into_its_parts_and_the_rest(wall):
    parts = PartClock(max_steps=2)
    with pytest.raises(EnoughSteps):
        for duration in (1.0, 3.0):
            with parts("step"):
                with parts("target"):
                    wall.now += duration
                wall.now += 0.5
    assert parts.medians() == pytest.approx({"target_ms": 2000, "step_ms": 2500, "other_ms": 500})
