"""One run on a toy Slurm and one on this machine, shared by the tests of this folder."""

import pytest

import toy_slurm
from cluster_run import SMALL, run_on
from tiny_run import Workflow

TARGETS = ["results/summary.csv", "results/paired.csv"]


@pytest.fixture(scope="session")
def slurm():
    """A Slurm of our own; tests that want one skip where none can be."""
    reason = toy_slurm.why_not()
    if reason:
        pytest.skip(reason)
    with toy_slurm.ToySlurm() as running:
        yield running


@pytest.fixture(scope="session")
def cluster_run(slurm, tmp_path_factory):
    """A finished run with the Slurm profile."""
    return run_on(slurm, tmp_path_factory.mktemp("cluster"), *TARGETS)


@pytest.fixture(scope="session")
def local_run(slurm, tmp_path_factory):
    """The same on this machine, without Slurm."""
    workflow = Workflow(tmp_path_factory.mktemp("local"), overlays=(SMALL,))
    code, output = workflow.run("--", *TARGETS, timeout=600)
    assert code == 0, output + workflow.logs()
    return workflow
