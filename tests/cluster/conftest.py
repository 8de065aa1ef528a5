"""One run on a toy Slurm and one on this machine, shared by the tests of this folder."""

import signal

import pytest

import toy_slurm
from cluster_run import SMALL, run_locally, run_on
from tiny_run import copy_run


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
def trained(finished, tmp_path_factory):
    """Makes copies of the finished tiny run: its models serve, the images are others."""
    return lambda name: copy_run(finished, tmp_path_factory.mktemp(name) / "run", (SMALL,))


@pytest.fixture(scope="session")
def cluster_run(slurm, trained):
    """A finished run with the Slurm profile."""
    return run_on(slurm, trained("cluster"))


@pytest.fixture(scope="session")
def local_run(slurm, trained):
    """The same without Slurm."""
    return run_locally(trained("local"))
