"""Tests of the measurement of peak memory."""

import sys

import pytest
import torch

from lantern_pipeline.measure.memory import peak_gib, reset_peak

CPU = torch.device("cpu")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can start a new measurement")
def test_a_new_measurement_forgets_the_former_peak():
    reset_peak(CPU)
    before = peak_gib(CPU)
    large = torch.ones(2**27)  # half a GiB
    assert peak_gib(CPU) - before == pytest.approx(0.5, abs=0.1)
    del large
    reset_peak(CPU)
    assert peak_gib(CPU) - before < 0.1
