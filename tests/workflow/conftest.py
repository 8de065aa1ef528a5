"""One tiny run of the real Snakefile, shared by the tests of this folder."""

import shutil

import pytest

from tiny_run import Workflow


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A finished tiny run. Tests read it; who changes something takes `copy_of_finished`."""
    workflow = Workflow(tmp_path_factory.mktemp("tiny"))
    code, output = workflow.run()
    assert code == 0, output + workflow.logs()
    workflow.output = output
    return workflow


@pytest.fixture
def copy_of_finished(finished, tmp_path):
    """A copy of the finished run, file dates and Snakemake's records included."""
    shutil.copytree(finished.folder, tmp_path / "run", symlinks=True)
    return Workflow(tmp_path / "run")
