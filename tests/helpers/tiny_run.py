"""Runs of the real Snakefile on the tiny config, each in a separate folder."""

import ast
import gc
import hashlib
import importlib
import io
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
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing.connection import Client, Listener
from pathlib import Path

import matplotlib
import open_clip  # noqa: F401
import pandas  # noqa: F401
import scipy.stats  # noqa: F401
import snakemake.cli
import snakemake.script
import torch._dynamo  # noqa: F401
import torch_fidelity  # noqa: F401
import yaml
from filelock import FileLock
from matplotlib.figure import Figure

from helpers.paths import ROOT
from lantern_pipeline.job.fingerprint import code_fingerprint

PINS = ("requirements.lock.txt", "pyproject.toml")  # what the Makefile reads
TINY = ROOT / "tests" / "workflow" / "tiny.yaml"
EXACT = ["autoregressive", "eagle2", "coupled", "jacobi", "hybrid"]
METHODS = [*EXACT, "proximity-k20", "bounded-k4-delta0.2"]  # of the tiny config
# Measurements of time: prefixes of columns, or values of the column `metric`.
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
PATCH = "LANTERN_TEST_PATCH"  # environment variable with the path of a file that each job runs first


@dataclass
class Workflow:
    """A folder in which the project's Snakefile runs on the tiny config.

    Attributes:
        folder: the folder.
        overlays: config files that change the tiny config.
        config: config files on which all runs are based.
        project: the folder of the Snakefile.
        forks: if True, a job is a fork, which has its imports; else a new Python, as without this class.
    """

    folder: Path
    overlays: tuple = ()
    config: tuple = (TINY,)
    project: Path = ROOT
    forks: bool = True

    def command(self, *arguments):
        """Return the command line of Snakemake. `arguments` come last."""
        configs = [str(path) for path in (ROOT / "config.yaml", *self.config, *self.overlays)]
        snakefile = ["--snakefile", str(self.project / "Snakefile"), "--directory", str(self.folder)]
        return [sys.executable, "-m", "snakemake", *snakefile, "--configfile", *configs, "--cores", "2", *arguments]

    def run(self, *arguments, env=None, before=None, timeout=900):
        """Run Snakemake in a fork of this process.

        Args:
            arguments: arguments of Snakemake.
            env: environment variables to add.
            before: function that the fork calls first.
            timeout: seconds after which Snakemake is killed and the test fails.

        Returns:
            (exit code, all output).
        """
        with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
            process = self.start(output, *arguments, env=env, before=before)
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

    def start(self, output, *arguments, env=None, before=None):
        """Start Snakemake in a fork of this process.

        A fork has imported torch and Snakemake already. Importing them takes longer than most jobs. Lantern's packages
        are imported again.

        Args:
            output: file that takes all output.
            arguments, env, before: see `run`.

        Returns:
            The process of Snakemake. It is the leader of a process group, to which the jobs belong.
        """
        know_fingerprints()
        know_fonts()
        process = FORK.Process(target=run_snakemake, args=(self, arguments, env or {}, before, output))
        process.start()
        return process

    def make(self, target, *arguments, **variables):
        """Run a target of the project's Makefile in the run's folder, to which the files of the project are linked.

        Args:
            target: the target.
            arguments: arguments that are put into ARGS, next to the tiny config.
            variables: variables of make.

        Returns:
            (exit code, all output).
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
        """Return the environment variables for `make`, without those of an outer `make`."""
        found = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        return {**found, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/workflow"}

    def result(self, name):
        """Return the path of a file in the results folder."""
        return self.folder / "results" / "tiny" / name

    def logs(self):
        """Return the text of all job logs."""
        return "\n".join(f"== {path}\n{path.read_text()}" for path in sorted(self.result("logs").glob("*.log")))


def run_snakemake(workflow, arguments, environment, before, output):
    """Run `python -m snakemake` in the fork of `Workflow.start`.

    Args:
        workflow: the run.
        arguments: arguments of Snakemake.
        environment: environment variables to add.
        before: function to call first, or None.
        output: file that takes all output.
    """
    os.setpgid(0, 0)
    for number in (1, 2):
        os.dup2(output.fileno(), number)
    own_output()
    os.environ.update(environment)
    os.chdir(workflow.folder)
    if before:
        before()
    if workflow.project != ROOT:
        forget_packages()
        sys.path[:0] = [str(workflow.project), str(workflow.project / "workflow")]
    sys.argv = workflow.command(*arguments)[2:]
    with forked_jobs() if workflow.forks else nullcontext():
        snakemake.cli.main()


@contextmanager
def forked_jobs():
    """Run the scripts of Snakemake's jobs in forks of a second process, in place of new Pythons."""
    gc.freeze()  # else forks would copy the memory pages that a garbage collection touches
    jobs = Listener(family="AF_UNIX")
    server = os.fork()
    if not server:
        serve_jobs(jobs)
    snakemake.script.PythonScript.execute_script = lambda self, path, edit=False: run_script(jobs.address, path, self)
    try:
        yield
    finally:
        with Client(jobs.address) as connection:
            connection.send(None)
        os.waitpid(server, 0)  # so that a test's process time includes its jobs


def own_output():
    """Open new output streams in a fork.

    The inherited ones may be locked by a thread that does not exist in the fork.
    """
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))


def serve_jobs(jobs):
    """Run each requested script in a fork of this process, until the request is None.

    This process has only one thread. Snakemake has several, and a fork of its process could inherit a lock that no
    thread ever releases. This process imports Lantern's packages again, so that the jobs need not.

    Args:
        jobs: listener from which the paths of scripts are read.
    """
    forget_packages()
    while True:
        connection = jobs.accept()
        path = connection.recv()
        if path is None:
            for job in FORK.active_children():
                job.join()
            os._exit(0)
        import_ahead(path)
        FORK.Process(target=serve_job, args=(connection, path)).start()
        connection.close()


def import_ahead(path):
    """Import the modules of Lantern that a script imports. An error is left to the script, which imports them, too."""
    for node in ast.parse(Path(path).read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module.startswith("lantern"):
            with suppress(Exception):
                importlib.import_module(node.module)
    gc.freeze()  # see `forked_jobs`


def serve_job(connection, path):
    """Run a script in this fork. Send an answer if it ends without an error."""
    be_script(path)
    connection.send("done")


def run_script(address, path, job):
    """Run a job's script in a fork. It replaces Snakemake's function, which starts a new Python.

    Args:
        address: address of `serve_jobs`.
        path: the script.
        job: Snakemake's object of the script, which has the record of a `benchmark`.

    Raises:
        subprocess.CalledProcessError: the script failed, or its process was killed.
    """
    with Client(address) as connection:
        connection.send(path)
        try:
            connection.recv()
        except EOFError:  # the process has ended
            raise subprocess.CalledProcessError(1, path) from None
    if job.bench_record:
        job.bench_record.running_time = 0.0  # not measured


def be_script(path):
    """Run a script as `__main__` in this fork."""
    own_output()
    sys.orig_argv = [sys.executable, path]
    if PATCH in os.environ:
        runpy.run_path(os.environ[PATCH])
    runpy.run_path(path, run_name="__main__")


def forget_packages():
    """Let Lantern's packages be imported again."""
    for name in [name for name in sys.modules if name.startswith("lantern")]:
        if name != "lantern.fused":  # a process registers its operations with PyTorch once
            del sys.modules[name]


@cache
def know_fingerprints():
    """Compute the fingerprints of all scripts once, so that all forks have them.

    A fingerprint is a checksum of the code that a script runs.
    """
    for script in (ROOT / "workflow" / "scripts").glob("*.py"):
        code_fingerprint(script)


@cache
def know_fonts():
    """Draw an empty figure once, so that all forks have its fonts, and the modules with which matplotlib draws."""
    figure = Figure()
    figure.subplots()
    with matplotlib.rc_context({"pdf.fonttype": 42}):  # as in the project's figures
        for name in ("png", "pdf"):
            figure.savefig(io.BytesIO(), format=name)


def finished_run(folder):
    """Return the finished tiny run of a folder.

    The first caller runs it. Callers in other processes wait, and then share it.
    """
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
    """Copy a run, including file dates and Snakemake's records."""
    # Another test may run Snakemake in the source at this moment. Its lock must not be copied.
    shutil.copytree(workflow.folder, folder, symlinks=True, ignore=shutil.ignore_patterns("locks"))
    return Workflow(folder, overlays)


def planned(output):
    """Return the number of jobs per rule, from the table that Snakemake prints."""
    return {name: int(count) for name, count in re.findall(r"^(\w+) +(\d+)$", output, re.M)}


def re_run(output):
    """Return the rules whose code or parameters changed, from the reasons that Snakemake prints in a dry run."""
    found = re.findall(r"(?:code|params) ha(?:s|ve) changed since last execution:\n +(.*)", output)
    return {rule for line in found for rule in line.split(", ")}


def overlays_of(*names):
    """Return the paths of config files in experiments/."""
    return tuple(ROOT / "experiments" / f"{name}.yaml" for name in names)


def with_overlay(workflow, folder, **sections):
    """Return a run with one overlay, which consists of the given config sections."""
    path = folder / "overlay.yaml"
    path.write_text(yaml.safe_dump(sections))
    return replace(workflow, overlays=(path,))


def hashes(folder):
    """Return path -> SHA-256 of all files below a folder."""
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.rglob("*")) if path.is_file()}


def copy_project(folder):
    """Copy the project without the folders that git ignores, and return the copy."""
    ignored = shutil.ignore_patterns(".git", ".venv", "results", ".snakemake", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, folder, ignore=ignored)
    return folder


def edited_project(folder, module):
    """Copy the project, append one statement to a module of the copy, and return the copy."""
    copy_project(folder)
    with open(folder / module, "a") as file:
        file.write("\nEDITED = True\n")
    return folder


def without_time(table):
    """Return a table without its columns of time. If it has a column `metric`, rows of time are removed, too."""
    rows = ~table["metric"].isin(TIMED) if "metric" in table else slice(None)
    return table.loc[rows, [column for column in table if not column.startswith(TIMED)]]
