"""Tests of the measurement of peak memory."""

import sys

import pytest
import torch

from lantern_pipeline.measure.speed.memory import peak_gib, reset_peak


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can start a new measurement")
def test_a_new_measurement_forgets_the_former_peak():
    cpu = torch.device("cpu")
    reset_peak(cpu)
    before = peak_gib(cpu)
    large = torch.ones(2**27)  # half a GiB, which goes back to the system at once
    with_large = peak_gib(cpu) - before
    del large
    reset_peak(cpu)
    assert with_large == pytest.approx(0.5, abs=0.1) and peak_gib(cpu) - before < 0.1
