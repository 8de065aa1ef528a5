"""Runs the real Snakefile on the tiny config, in a folder of its own."""

import gc
import hashlib
import multiprocessing
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing.connection import Client, Listener
from pathlib import Path

import matplotlib.figure  # noqa: F401
import open_clip  # noqa: F401
import pandas  # noqa: F401
import scipy.stats  # noqa: F401
import snakemake.cli
import snakemake.script
import torch._dynamo  # noqa: F401
import torch_fidelity  # noqa: F401
import yaml
from filelock import FileLock

from helpers.paths import ROOT
from lantern_pipeline.runtime.fingerprint import code_fingerprint

PINS = ("requirements.lock.txt", "pyproject.toml")  # what the Makefile reads
TINY = ROOT / "tests" / "workflow" / "tiny.yaml"
EXACT = ["autoregressive", "eagle2", "coupled", "jacobi", "hybrid"]
METHODS = [*EXACT, "proximity-k20", "bounded-k4-delta0.2"]  # of the tiny config
# What is measured with a clock: columns, or rows of a metric.
TIMED = ("latency_s", "relative_step_cost", "speedup", "seconds_in_batch", "busy_elsewhere")
TRAINING = {
    "train_attribute_classifier",
    "train_tokenizer",
    "encode_images",
    "train_clip",
    "train_target",
    "train_drafter",
}


FORK = multiprocessing.get_context("fork")


@dataclass
class Workflow:
    """The project's Snakefile, run in a folder of its own on the tiny config (and overlays)."""

    folder: Path
    overlays: tuple = ()
    config: tuple = (TINY,)

    def command(self, *arguments):
        configs = [str(path) for path in (ROOT / "config.yaml", *self.config, *self.overlays)]
        snakefile = ["--snakefile", str(ROOT / "Snakefile"), "--directory", str(self.folder)]
        return [sys.executable, "-m", "snakemake", *snakefile, "--configfile", *configs, "--cores", "2", *arguments]

    def run(self, *arguments, env=None, before=None, timeout=900):
        """Runs Snakemake in a fork of this process, and each job in another; returns (exit code, all output).

        A fork has torch and Snakemake imported, which else takes longer than most jobs do; our packages are imported
        anew. `before` is called first, in the fork.
        """
        know_fingerprints()
        with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
            arguments = (self.command(*arguments)[2:], self.folder, env or {}, before, output)
            process = FORK.Process(target=run_snakemake, args=arguments)
            process.start()
            try:
                process.join(timeout)
                is_late = process.is_alive()
            finally:
                if process.is_alive():
                    os.killpg(process.pid, signal.SIGKILL)  # Snakemake and its jobs
            process.join()
            output.seek(0)
            printed = output.read()
        assert not is_late, f"Snakemake took more than {timeout} s: {printed}"
        return process.exitcode, printed

    def make(self, target, *arguments, **variables):
        """Runs the Makefile's own lines in the run's folder, which is made to look like the project's.

        `arguments` go into ARGS beside the tiny config, `variables` to make. Returns (exit code, everything printed).
        """
        for name in ("Makefile", "Snakefile", "config.yaml", "profiles", "workflow", *PINS):
            if not (self.folder / name).exists():
                (self.folder / name).symlink_to(ROOT / name)
        configs = [str(path) for path in (ROOT / "config.yaml", *self.config, *self.overlays)]
        variables = {
            "STAMP": "",  # nothing is installed
            "BIN": Path(sys.executable).parent,
            "CORES": 2,
            "ARGS": shlex.join([*arguments, "--configfile", *configs]),
            **variables,
        }
        command = ["make", target, *(f"{name}={value}" for name, value in variables.items())]
        result = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return result.returncode, result.stdout

    def environment(self):
        """The variables of a process that `make` starts."""
        found = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        return {**found, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/workflow"}

    def result(self, name):
        return self.folder / "results" / "tiny" / name

    def logs(self):
        return "\n".join(f"== {path}\n{path.read_text()}" for path in sorted(self.result("logs").glob("*.log")))


def run_snakemake(command, folder, environment, before, output):
    """What the fork of `Workflow.run` does: `python -m snakemake`."""
    os.setpgid(0, 0)
    for number in (1, 2):
        os.dup2(output.fileno(), number)
    own_output()
    os.environ.update(environment)
    os.chdir(folder)
    if before:
        before()
    gc.freeze()  # forks would else copy what a collection touches
    jobs = Listener(family="AF_UNIX")
    server = os.fork()
    if not server:
        serve_jobs(jobs)
    snakemake.script.PythonScript.execute_script = lambda self, path, edit=False: run_script(jobs.address, path)
    sys.argv = command
    try:
        snakemake.cli.main()
    finally:
        os.kill(server, signal.SIGKILL)


def own_output():
    """Opens the streams of a fork, since those it got may have been locked by a thread that it has not."""
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))


def serve_jobs(jobs):
    """Runs each script that is asked for in a fork of this process.

    It has one thread, unlike Snakemake's, a fork of which may find a lock that no thread is left to open.
    """
    while True:
        connection = jobs.accept()
        FORK.Process(target=serve_job, args=(connection,)).start()
        connection.close()


def serve_job(connection):
    process = FORK.Process(target=be_script, args=(connection.recv(),))
    process.start()
    process.join()
    connection.send(process.exitcode)


def run_script(address, path):
    """What Snakemake does to run a job's script, with a fork in place of a new Python."""
    with Client(address) as connection:
        connection.send(path)
        code = connection.recv()
    if code:
        raise subprocess.CalledProcessError(code, path)


def be_script(path):
    own_output()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("lantern", "lantern_pipeline")]:
        if name != "lantern.fused":  # a process registers its operations with PyTorch once
            del sys.modules[name]
    runpy.run_path(path, run_name="__main__")


@cache
def know_fingerprints():
    """Works out the fingerprints of all scripts once, for all forks."""
    for script in (ROOT / "workflow" / "scripts").glob("*.py"):
        code_fingerprint(script)


def finished_run(folder):
    """The finished tiny run of a folder, made by the first that wants it; tests in several processes share it."""
    workflow, printed = Workflow(folder / "run"), folder / "printed.txt"
    with FileLock(folder / "lock"):
        if not printed.exists():
            workflow.folder.mkdir(exist_ok=True)
            code, output = workflow.run()
            assert code == 0, output + workflow.logs()
            printed.write_text(output)
    workflow.output = printed.read_text()
    return workflow


def copy_run(workflow, folder, overlays=()):
    """A copy of a run, file dates and Snakemake's records included."""
    # Another test may ask for something in the run at this very moment: its lock is no part of the copy.
    shutil.copytree(workflow.folder, folder, symlinks=True, ignore=shutil.ignore_patterns("locks"))
    return Workflow(folder, overlays)


def planned(output):
    """Rule -> number of jobs, from the table that Snakemake prints."""
    return {name: int(count) for name, count in re.findall(r"^(\w+) +(\d+)$", output, re.M)}


def re_run(output):
    """Rules whose code or parameters changed, by the reasons that Snakemake prints in a dry run."""
    found = re.findall(r"(?:code|params) ha(?:s|ve) changed since last execution:\n +(.*)", output)
    return {rule for line in found for rule in line.split(", ")}


def overlays_of(*names):
    return tuple(ROOT / "experiments" / f"{name}.yaml" for name in names)


def with_overlay(workflow, folder, **sections):
    path = folder / "overlay.yaml"
    path.write_text(yaml.safe_dump(sections))
    return replace(workflow, overlays=(path,))


def hashes(folder):
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.rglob("*")) if path.is_file()}


def copy_project(folder):
    """A copy of the project, without what git ignores."""
    ignored = shutil.ignore_patterns(".git", ".venv", "results", ".snakemake", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, folder, ignore=ignored)
    return folder


def edited_project(folder, module):
    """A copy of the project with one statement more in a module."""
    copy_project(folder)
    with open(folder / module, "a") as file:
        file.write("\nEDITED = True\n")
    return folder


def without_time(table):
    """A table without its columns of time, or without its rows of it."""
    rows = ~table["metric"].isin(TIMED) if "metric" in table else slice(None)
    return table.loc[rows, [column for column in table if not column.startswith(TIMED)]]
