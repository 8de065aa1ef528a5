"""What every script does around its work."""

import io
import logging
import os
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lantern.io import load_tensors
from lantern_pipeline.runtime.job import job_log, partial_records
from lantern_pipeline.runtime.locks import try_lock


@pytest.fixture
def snakemake(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return SimpleNamespace(rule="write_prompts", log=[str(tmp_path / "logs" / "job.log")], threads=1, resources={})


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


def run_damaged(snakemake, monkeypatch, folder, name):
    """What the terminal says when a job meets a damaged file."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("half")
    monkeypatch.chdir(folder)
    terminal = io.StringIO()
    monkeypatch.setattr("sys.stderr", terminal)
    with pytest.raises(SystemExit), job_log(snakemake):
        load_tensors(name)
    logging.captureWarnings(False)
    return terminal.getvalue()


def test_a_damaged_file_of_the_results_is_set_aside(snakemake, monkeypatch, tmp_path):
    said = run_damaged(snakemake, monkeypatch, tmp_path, "results/tiny/codes.safetensors")
    assert "results/tiny/codes.safetensors is truncated" in said and "run again, which makes it anew" in said
    assert (tmp_path / "results/tiny/codes.safetensors.damaged").read_text() == "half"
    assert not (tmp_path / "results/tiny/codes.safetensors").exists()


def test_a_damaged_file_from_elsewhere_stays_where_it_is(snakemake, monkeypatch, tmp_path):
    said = run_damaged(snakemake, monkeypatch, tmp_path, "weights/target.safetensors")
    assert "weights/target.safetensors is truncated" in said and "fetch it again or make it anew" in said
    assert (tmp_path / "weights/target.safetensors").read_text() == "half"


def test_a_job_waits_for_an_earlier_process_of_the_same_job(snakemake, monkeypatch, tmp_path):
    run(snakemake, monkeypatch, lambda log: log.info("first"))
    (path,) = (tmp_path / ".snakemake" / "lantern_jobs").iterdir()
    earlier = open(path, "a+")  # noqa: SIM115
    assert try_lock(earlier)
    Path(snakemake.log[0]).unlink()  # as Snakemake does before a job starts
    monkeypatch.setattr(time, "sleep", lambda _: earlier.close())  # it ends while the second waits
    terminal, file = run(snakemake, monkeypatch, lambda log: log.info("second"))
    assert f"write_prompts: waiting for process {os.getpid()} on" in terminal and "second" in file


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_stays_on_a_terminal_and_goes_to_the_log_where_there_is_none(snakemake, monkeypatch, is_terminal):
    terminal = io.StringIO()
    terminal.isatty = lambda: is_terminal
    monkeypatch.setattr("sys.stderr", terminal)
    with job_log(snakemake):
        print("10 %", file=sys.stderr)
    logging.captureWarnings(False)
    assert (terminal.getvalue() == "10 %\n") == is_terminal
    assert ("10 %" in Path(snakemake.log[0]).read_text()) != is_terminal


def test_finished_images_are_kept_until_a_job_ends_well(snakemake, tmp_path):
    snakemake.config, snakemake.params = {"device": "cpu"}, {"noise_seed": 2}
    snakemake.input, snakemake.output = [], [str(tmp_path / "images.safetensors")]
    with pytest.raises(KeyboardInterrupt), partial_records(snakemake) as path:
        path.write_text("half")
        raise KeyboardInterrupt
    with partial_records(snakemake) as again:
        assert again == path and again.read_text() == "half"
    assert not path.exists()


@pytest.mark.parametrize(("threads", "used"), [(0, 1), (1, 1), (3, 3)])
def test_a_job_computes_with_the_threads_that_it_was_given(snakemake, monkeypatch, threads, used):
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    snakemake.threads = threads
    run(snakemake, monkeypatch, lambda log: None)
    assert asked == [used]
