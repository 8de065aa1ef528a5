"""A test run that is ended takes its toy Slurm with it. Comes first in this folder: only one toy Slurm can run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import toy_slurm

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(toy_slurm.why_not() is not None, reason=str(toy_slurm.why_not())),
]
HERE = Path(__file__).parent
RUN = """
import time


def test_that_lasts(slurm):
    print("up", flush=True)
    time.sleep(60)
"""


def wait_for(is_done, seconds=30):
    deadline = time.monotonic() + seconds
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture
def test_run(tmp_path):
    """A test run of its own, in the middle of a test that uses the toy Slurm."""
    (tmp_path / "conftest.py").write_text((HERE / "conftest.py").read_text())
    (tmp_path / "test_it.py").write_text(RUN)
    folders = [HERE, HERE.parent / "workflow", HERE.parent, *map(Path, sys.path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    command = [sys.executable, "-m", "pytest", "-s", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    options = {"cwd": tmp_path, "env": environment, "stdout": subprocess.PIPE, "text": True}
    # A process in a shell's background ignores SIGINT, and so would those that it starts.
    with subprocess.Popen(
        command, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **options
    ) as process:
        wait_for(lambda: "up" in process.stdout.readline())
        yield process
        process.kill()


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_an_ended_test_run_takes_its_toy_slurm_with_it(test_run, ending):
    test_run.send_signal(ending)
    test_run.wait(40)
    assert not toy_slurm.CONF.exists() and toy_slurm.why_not() is None


def test_what_a_killed_test_run_left_behind_is_ended_by_the_next(test_run):
    folder = Path(toy_slurm._owner_of_conf())
    test_run.kill()
    test_run.wait(10)
    assert toy_slurm.CONF.exists()
    assert toy_slurm.why_not() is None
    assert not toy_slurm.CONF.exists() and not folder.exists()
