"""The most process time that a test may take that is not marked slow."""

import os
import resource
import time

import pytest

LIMIT_S = 3.0
REFERENCE_S = 0.04  # of `calibration` on the CPU to which the limit refers


def process_time():
    """Return the CPU seconds of this process, and of its ended children and theirs."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def calibration():
    """Return the CPU seconds of a fixed piece of work."""
    start = time.process_time()
    sorted(str(number * 7919 % 100_003) for number in range(100_000))
    return time.process_time() - start


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    start = process_time()
    result = yield
    seconds = process_time() - start
    # measured only now, when this CPU is as busy as it was during the test
    # `.ci/run` tries slower kernels than a CPU has, which the calibration does not use.
    is_free = item.get_closest_marker("slow") or "ATEN_CPU_CAPABILITY" in os.environ
    if seconds > LIMIT_S and not is_free:
        seconds /= max(1.0, min(calibration() for _ in range(3)) / REFERENCE_S)
        if seconds > LIMIT_S:
            pytest.fail(f"took {seconds:.1f} s of CPU, more than {LIMIT_S:g}: mark it slow, or make it smaller")
    return result
