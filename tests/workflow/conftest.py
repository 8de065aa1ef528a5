"""Fixture of tests that change a finished run."""

import pytest

from helpers.tiny_run import copy_run


@pytest.fixture
def copy_of_finished(finished, tmp_path):
    """Return a copy of the finished run, including file dates and Snakemake's records."""
    return copy_run(finished, tmp_path / "run")
