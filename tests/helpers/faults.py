"""Faults put into a copy of the finished tiny run, and what a table must still say after them."""

import os
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from helpers.paths import ROOT
from helpers.tiny_run import Workflow, without_time
from lantern.io import load_tensors, save_tensors

TABLE = "results/tiny/summary.csv"
# Of the second repeat: the laws and the pictures are of the first, so that only quality and the tables follow.
SHARD = "generation/eagle2/seen/T1/s0n1/1-of-1.safetensors"
SUMMARIES = [TABLE, "results/tiny/paired.csv"]
FOLLOWERS = {"score_images", "measure_quality", "summarise"}

# Jobs that generate keep each batch at once; while the file `hold` is there, they then stop and say who they are.
HOLD = """
import os, sys, time
if any(".generate_images.py" in word for word in sys.orig_argv):
    import lantern.generation as generation
    import lantern_pipeline.runtime.job as job
    save = generation.save_records
    def save_and_hold(path, records):
        save(path, records)
        if os.path.exists({hold!r}):
            with open({held!r}, "w") as file:
                file.write(str(os.getpid()))
        while os.path.exists({hold!r}):
            time.sleep(0.05)
    generation.save_records, job.PARTIAL_EVERY_S = save_and_hold, -1.0
"""


def check_table(workflow, finished):
    """Compares the table of results with that of an undisturbed run, in all but time."""
    tables = [without_time(pd.read_csv(run.folder / TABLE)) for run in (workflow, finished)]
    pd.testing.assert_frame_equal(*tables, check_exact=True)


def resume(workflow):
    """Runs `make resume` up to the table, without the report; returns its output."""
    code, output = workflow.make("resume", TABLE, REPORT="", AFTER_RUN="")
    assert code == 0, output + workflow.logs()
    return output


def go_on(workflow):
    """Runs up to the table, without `make`; returns the output."""
    code, output = workflow.run(TABLE)
    assert code == 0, output + workflow.logs()
    return output


def rewrite(path, change):
    """Changes a tensor file behind Snakemake's back: `change` works on its tensors; the date stays."""
    dates = path.stat()
    tensors, metadata = load_tensors(path)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    change(tensors)
    save_tensors(path, tensors, metadata)
    os.utime(path, ns=(dates.st_atime_ns, dates.st_mtime_ns))


def overwrite(path, content):
    """Changes a file's bytes; its date stays."""
    dates = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(dates.st_atime_ns, dates.st_mtime_ns))


@dataclass
class HeldRun:
    """A run whose generating jobs stop after each batch until `release`.

    Attributes:
        process: Snakemake, leader of its own process group.
        folder: of what the jobs say.
    """

    process: subprocess.Popen
    folder: Path

    def job(self):
        """Process id of the job that waits."""
        held = self.folder / "held"
        deadline = time.monotonic() + 180
        while not (held.exists() and held.read_text()):
            assert self.process.poll() is None and time.monotonic() < deadline, self.output()
            time.sleep(0.1)
        return int(held.read_text())

    def release(self):
        (self.folder / "hold").unlink()

    def wait(self):
        """Waits for Snakemake's end; returns its exit code."""
        return self.process.wait(240)

    def output(self):
        return (self.folder / "output.txt").read_text()


@contextmanager
def held_run(workflow: Workflow, folder, *arguments):
    """Starts a run whose generating jobs stop after their first batch; whatever is left of it at the end is killed."""
    folder.mkdir()
    (folder / "hold").touch()
    patch = HOLD.format(hold=str(folder / "hold"), held=str(folder / "held"))
    (folder / "sitecustomize.py").write_text(patch)
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}{os.pathsep}{ROOT}/workflow"}
    with open(folder / "output.txt", "w") as output:
        process = subprocess.Popen(
            workflow.command(*arguments),
            cwd=workflow.folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield HeldRun(process, folder)
    finally:
        kill_group(process.pid)
        process.wait()


def kill_group(leader):
    """Kills a process and what it started, as far as they are still there."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
