"""One run on a toy Slurm and one on this machine, shared by the tests of this folder."""

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

import toy_slurm
from cluster_run import run_locally, run_on


@pytest.fixture(scope="session")
def slurm():
    """A Slurm of our own; tests that want one skip where none can be."""
    reason = toy_slurm.why_not()
    if reason:
        pytest.skip(reason)
    # A test run that is ended by SIGTERM ends like one that is interrupted: its fixtures are taken down.
    before = signal.signal(signal.SIGTERM, lambda *_: pytest.exit("ended by SIGTERM", returncode=143))
    with toy_slurm.ToySlurm() as running:
        yield running
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def both_runs(slurm, tmp_path_factory):
    """A finished run with the Slurm profile and one on this machine. At the same time: jobs on Slurm mostly wait."""
    with ThreadPoolExecutor() as threads:
        local = threads.submit(run_locally, tmp_path_factory.mktemp("local"))
        return run_on(slurm, tmp_path_factory.mktemp("cluster")), local.result()


@pytest.fixture(scope="session")
def cluster_run(both_runs):
    """The run with the Slurm profile."""
    return both_runs[0]


@pytest.fixture(scope="session")
def local_run(both_runs):
    """The same without Slurm."""
    return both_runs[1]
