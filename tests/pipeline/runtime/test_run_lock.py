"""One run at a time in a folder, whatever becomes of its process."""

import signal
import subprocess
import sys

import pytest

from lantern_pipeline.runtime.run_lock import RunLock

HOLDER = """
import sys, time
from lantern_pipeline.runtime.run_lock import RunLock
lock = RunLock(sys.argv[1])
lock.hold()
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / ".snakemake" / "lantern.lock"


@pytest.fixture
def holder(path):
    """Another process that holds the lock."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_a_folder_without_a_run_lets_everything_in_and_stays_as_it_is(path, tmp_path):
    RunLock(path).check(["snakemake", "--unlock"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["--cores", "2"], ["--unlock"], []])
def test_a_second_run_is_refused_with_the_first_ones_process(path, holder, tmp_path, arguments):
    with pytest.raises(ValueError, match=f"a run goes on in {tmp_path} .process {holder.pid} on .*wait for it or stop"):
        RunLock(path).check(arguments)
    with pytest.raises(ValueError, match=f"process {holder.pid} on"):
        RunLock(path).hold()


@pytest.mark.parametrize("word", ["-n", "--dry-run", "--lint"])
def test_commands_that_change_nothing_pass(path, holder, word):
    RunLock(path).check(["--cores", "2", word])


def test_a_lock_ends_with_its_process(path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    RunLock(path).check(["--unlock"])
    lock = RunLock(path)
    lock.hold()
    with pytest.raises(ValueError, match="a run goes on"):
        RunLock(path).hold()
