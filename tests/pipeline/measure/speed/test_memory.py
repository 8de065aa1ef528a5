"""Tests of the measurement of peak memory."""

import subprocess
import sys

import pytest

# In a process of its own, since in a large one freed memory may stay with the allocator.
MEASURE = """
import torch
from lantern_pipeline.measure.speed.memory import peak_gib, reset_peak

cpu = torch.device("cpu")
reset_peak(cpu)
before = peak_gib(cpu)
large = torch.ones(2**27)  # half a GiB
print(peak_gib(cpu) - before)
del large
reset_peak(cpu)
print(peak_gib(cpu) - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can start a new measurement")
def test_a_new_measurement_forgets_the_former_peak():
    result = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    with_large, without = map(float, result.stdout.split())
    assert with_large == pytest.approx(0.5, abs=0.1) and without < 0.1
