"""A copy of the shared tiny run, for tests that change something in it."""

import pytest

from helpers.tiny_run import copy_run


@pytest.fixture
def copy_of_finished(finished, tmp_path):
    """A copy of the finished run, file dates and Snakemake's records included."""
    return copy_run(finished, tmp_path / "run")
