"""Tests of the process time that a test may take."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from helpers import time_limit

BURN = [sys.executable, "-c", "import time\nwhile time.process_time() < 0.1: pass"]


@pytest.mark.parametrize(
    ("mark", "limit", "reference", "fails"),
    [(None, 0.1, 99, True), ("slow", 0.1, 99, False), (None, 60, 99, False), (None, 0.1, 1e-6, False)],
    ids=["too long", "marked", "short", "on a slow CPU"],
)
def test_a_test_that_takes_long_fails_unless_it_is_marked_slow(mark, limit, reference, fails, monkeypatch):
    call = time_limit.pytest_runtest_call(SimpleNamespace(get_closest_marker=lambda name: name == mark))
    with monkeypatch.context() as patch:  # which ends before the limit of this test itself is looked at
        patch.setattr(time_limit, "LIMIT_S", limit)
        patch.setattr(time_limit, "REFERENCE_S", reference)
        next(call)
        subprocess.run(BURN, check=True)  # the time of a child counts
        with pytest.raises(pytest.fail.Exception if fails else StopIteration, match="mark it slow" if fails else None):
            call.send(None)
