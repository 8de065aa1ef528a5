"""What every script does around its work."""

import io
import logging
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from lantern.job import job_log


@pytest.fixture
def snakemake(tmp_path):
    return SimpleNamespace(rule="write_prompts", log=[str(tmp_path / "logs" / "job.log")], threads=1)


def run(snakemake, monkeypatch, work):
    """What the terminal and the log file hold after a job."""
    terminal = io.StringIO()
    monkeypatch.setattr("sys.stderr", terminal)
    try:
        with job_log(snakemake) as log:
            work(log)
    finally:
        logging.captureWarnings(False)
    return terminal.getvalue(), Path(snakemake.log[0]).read_text()


def test_the_packages_warnings_reach_the_terminal_and_those_of_libraries_the_log(snakemake, monkeypatch):
    def work(log):
        log.info("wrote 3 prompts")
        logging.getLogger("lantern.prompts").warning("left out 2 rows")
        logging.getLogger("somelibrary").warning("some library's concern")
        warnings.warn("deprecated", UserWarning, stacklevel=1)

    terminal, file = run(snakemake, monkeypatch, work)
    assert terminal == "write_prompts: left out 2 rows\n"
    assert all(part in file for part in ("wrote 3 prompts", "left out 2 rows", "some library's concern", "deprecated"))


def test_an_error_is_one_sentence_on_the_terminal_and_a_traceback_in_the_log(snakemake, monkeypatch):
    def work(log):
        raise ValueError("delta must be in [0, 1], got 2")

    terminal = io.StringIO()
    monkeypatch.setattr("sys.stderr", terminal)
    with pytest.raises(SystemExit), job_log(snakemake) as log:
        work(log)
    logging.captureWarnings(False)
    assert terminal.getvalue().strip() == f"write_prompts: delta must be in [0, 1], got 2 (details: {snakemake.log[0]})"
    assert "Traceback" in Path(snakemake.log[0]).read_text()
