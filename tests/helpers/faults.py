"""Faults that tests put into a copy of the finished tiny run, such as a killed job or a changed file.

Afterwards the results table must equal the table of an undisturbed run.
"""

import os
import signal
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import pandas as pd

from helpers.paths import ROOT
from helpers.tiny_run import PATCH, Workflow, without_time
from lantern.io import load_tensors, save_tensors

TABLE = "results/tiny/summary.csv"
# Images of the second repeat (another seed). Output distributions and image pages use the first repeat only, so of a
# change here only the quality and the tables are made again.
SHARD = "generation/eagle2/seen/T1/s0n1/1-of-1.safetensors"
SUMMARIES = [TABLE, "results/tiny/paired.csv"]
FOLLOWERS = {"score_images", "measure_quality", "summarise"}

# With this patch, jobs that generate images save each batch at once. While the file `hold` exists, they then stop and
# write their process id into `held`.
HOLD = """
import os, sys, time
if any(".generate_images.py" in word for word in sys.orig_argv):
    import lantern.generation as generation
    import lantern_pipeline.job.context as context
    save = generation.save_records
    def save_and_hold(path, records):
        save(path, records)
        if os.path.exists({hold!r}):
            with open({held!r}, "w") as file:
                file.write(str(os.getpid()))
        while os.path.exists({hold!r}):
            time.sleep(0.05)
    generation.save_records, context.PARTIAL_EVERY_S = save_and_hold, -1.0
"""


def check_table(workflow, finished):
    """Assert that two runs have equal results tables, except for the columns of time."""
    tables = [without_time(pd.read_csv(run.folder / TABLE)) for run in (workflow, finished)]
    pd.testing.assert_frame_equal(*tables, check_exact=True)


def resume(workflow):
    """Unlock a run and go on, as `make resume` does, and return the output."""
    code, output = workflow.run("--unlock")
    assert code == 0, output
    return go_on(workflow)


def go_on(workflow):
    """Run Snakemake up to the results table, and return its output."""
    code, output = workflow.run(TABLE)
    assert code == 0, output + workflow.logs()
    return output


def rewrite(path, change):
    """Change the tensors of a file without changing its modification time, so that Snakemake does not notice.

    Args:
        path: the file.
        change: changes a dict of tensors in place.
    """
    dates = path.stat()
    tensors, metadata = load_tensors(path)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    change(tensors)
    save_tensors(path, tensors, metadata)
    os.utime(path, ns=(dates.st_atime_ns, dates.st_mtime_ns))


def overwrite(path, content):
    """Replace the bytes of a file without changing its modification time."""
    dates = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(dates.st_atime_ns, dates.st_mtime_ns))


@dataclass
class HeldRun:
    """A run whose image-generating jobs stop after each batch until `release` is called.

    Attributes:
        process: Snakemake, the leader of its process group.
        folder: folder of the run's output and of the files `hold` and `held`, with which the jobs are stopped.
    """

    process: BaseProcess
    folder: Path

    def job(self):
        """Wait until a job has stopped, and return its process id."""
        held = self.folder / "held"
        deadline = time.monotonic() + 180
        while not (held.exists() and held.read_text()):
            assert self.process.is_alive() and time.monotonic() < deadline, self.output()
            time.sleep(0.1)
        return int(held.read_text())

    def release(self):
        """Let the stopped jobs run on, without further stops."""
        (self.folder / "hold").unlink()

    def wait(self):
        """Wait for Snakemake's end, and return its exit code.

        `Process.join` with a timeout would also wait for the jobs that a killed Snakemake leaves behind.
        """
        deadline = time.monotonic() + 240
        while self.process.is_alive():
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.1)
        return self.process.exitcode

    def output(self):
        """Return the text that Snakemake has printed so far."""
        return (self.folder / "output.txt").read_text()


@contextmanager
def held_run(workflow: Workflow, folder, *arguments):
    """Start a run whose image-generating jobs stop after their first batch, as a context manager.

    At the end of the context, all processes of the run are killed.

    Args:
        workflow: the run.
        folder: new folder for the files of `HeldRun`.
        arguments: arguments of Snakemake.
    """
    folder.mkdir()
    (folder / "hold").touch()
    patch = HOLD.format(hold=str(folder / "hold"), held=str(folder / "held"))
    (folder / "sitecustomize.py").write_text(patch)  # Python runs it at the start, such as that of a job of Slurm
    path = os.pathsep.join([str(folder), str(ROOT), str(ROOT / "workflow")])
    environment = {"PYTHONPATH": path, PATCH: str(folder / "sitecustomize.py")}
    with open(folder / "output.txt", "w") as output:
        process = workflow.start(output, *arguments, env=environment)
    try:
        yield HeldRun(process, folder)
    finally:
        kill_group(process.pid)
        process.join()


def kill_group(leader):
    """Kill a process group, if it still exists."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
