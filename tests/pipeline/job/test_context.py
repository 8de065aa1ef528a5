"""Tests of what every script does before and after its work."""

import io
import logging
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lantern.io import load_tensors
from lantern_pipeline.job import context
from lantern_pipeline.job.context import job_log, partial_records


@pytest.fixture
def snakemake(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return SimpleNamespace(rule="write_prompts", log=[str(tmp_path / "logs" / "job.log")], threads=1, resources={})


def run(snakemake, monkeypatch, work):
    """Return what the terminal and the log file contain after a job."""
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
    """Return what the terminal shows if a job reads a damaged file."""
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
    assert "results/tiny/codes.safetensors is truncated" in said and "run again to make a new one" in said
    assert (tmp_path / "results/tiny/codes.safetensors.damaged").read_text() == "half"
    assert not (tmp_path / "results/tiny/codes.safetensors").exists()


def test_a_damaged_file_from_elsewhere_stays_where_it_is(snakemake, monkeypatch, tmp_path):
    said = run_damaged(snakemake, monkeypatch, tmp_path, "weights/target.safetensors")
    assert "weights/target.safetensors is truncated" in said and "fetch it again or make it again" in said
    assert (tmp_path / "weights/target.safetensors").read_text() == "half"


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


@pytest.mark.parametrize(("resources", "is_held"), [({}, False), ({"gpu": 0}, False), ({"gpu": 1}, True)])
def test_a_job_holds_a_gpu_if_it_asks_for_one(snakemake, monkeypatch, resources, is_held):
    held = []
    monkeypatch.setattr(context, "hold_gpu", lambda rule, terminal: nullcontext(held.append(rule)))
    snakemake.resources = resources
    run(snakemake, monkeypatch, lambda log: None)
    assert held == ["write_prompts"] * is_held


def test_a_line_is_in_the_log_as_soon_as_it_is_printed(snakemake, monkeypatch):
    def work(log):
        print("step 1")
        assert Path(snakemake.log[0]).read_text() == "step 1\n"

    run(snakemake, monkeypatch, work)


@pytest.mark.parametrize(
    ("error", "said", "code"),
    [
        (KeyboardInterrupt(), "interrupted; run the same command again to resume", 130),
        (ValueError("k must be at least 1, got 0"), "k must be at least 1, got 0 (", 1),
        (ValueError(), "ValueError (", 1),
        (RuntimeError("no kernel"), "RuntimeError: no kernel (", 1),
        (RuntimeError(), "RuntimeError: RuntimeError (", 1),
        (ConnectionError("the server is in trouble"), "the server is in trouble (", 1),
        (OSError(28, "No space left on device"), "No space left on device (", 1),
        (OSError(2, "No such file", "a.csv"), "[Errno 2] No such file: 'a.csv' (", 1),
        (FloatingPointError("loss is nan"), "loss is nan (", 1),
    ],
)
def test_what_stops_a_job_is_said_and_ends_it_with_a_status(snakemake, monkeypatch, error, said, code):
    terminal = io.StringIO()
    monkeypatch.setattr("sys.stderr", terminal)
    with pytest.raises(SystemExit) as caught, job_log(snakemake):
        raise error
    logging.captureWarnings(False)
    assert caught.value.code == code and terminal.getvalue().startswith(f"\nwrite_prompts: {said}")
    assert sys.stderr is terminal


def test_what_other_settings_had_finished_is_removed_and_what_other_jobs_have_is_not(snakemake, tmp_path):
    snakemake.config, snakemake.params = {"device": "cpu"}, {"noise_seed": 2}
    snakemake.input, snakemake.output = [], [str(tmp_path / "images.safetensors")]
    stale, other = (tmp_path / f".partial-{stem}-{'0' * 16}.safetensors" for stem in ("images", "images2"))
    for path in (stale, other):
        path.touch()
    with partial_records(snakemake) as found:
        assert found.parent == tmp_path and len(found.name) == len(stale.name) and not stale.exists()
    assert other.exists()
