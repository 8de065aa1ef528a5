"""Runs the real Snakefile on the tiny config, in a folder of its own."""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
PINS = ("requirements.lock.txt", "pyproject.toml")  # what the Makefile reads
TINY = Path(__file__).parent / "tiny.yaml"
METHODS = ["autoregressive", "eagle2", "coupled", "proximity-k20", "bounded-k4-delta0.2"]  # of the tiny config
EXACT = METHODS[:3]
TIMED = ("latency_s", "speedup", "seconds_in_batch")  # what is measured with a clock: columns, or rows of a metric
TRAINING = {
    "train_attribute_classifier",
    "train_tokenizer",
    "encode_images",
    "train_clip",
    "train_target",
    "train_drafter",
}


@dataclass
class Workflow:
    """The project's Snakefile, run in a folder of its own on the tiny config (and overlays)."""

    folder: Path
    overlays: tuple = ()

    def command(self, *arguments):
        configs = [str(path) for path in (ROOT / "config.yaml", TINY, *self.overlays)]
        snakefile = ["--snakefile", str(ROOT / "Snakefile"), "--directory", str(self.folder)]
        return [sys.executable, "-m", "snakemake", *snakefile, "--configfile", *configs, "--cores", "2", *arguments]

    def run(self, *arguments, env=None, timeout=600):
        """Runs Snakemake; returns (exit code, everything printed)."""
        result = subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env={**os.environ, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )
        return result.returncode, result.stdout

    def make(self, target, *arguments, **variables):
        """Runs the Makefile's own lines in the run's folder, which is made to look like the project's.

        `arguments` go into ARGS beside the tiny config, `variables` to make. Returns (exit code, everything printed).
        """
        for name in ("Makefile", "Snakefile", "config.yaml", "profiles", "workflow", *PINS):
            if not (self.folder / name).exists():
                (self.folder / name).symlink_to(ROOT / name)
        configs = [str(path) for path in (ROOT / "config.yaml", TINY, *self.overlays)]  # in the order of `command`
        variables = {
            "STAMP": "",  # nothing is installed
            "BIN": Path(sys.executable).parent,
            "CORES": 2,
            "ARGS": shlex.join([*arguments, "--configfile", *configs]),
            **variables,
        }
        command = ["make", target, *(f"{name}={value}" for name, value in variables.items())]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/workflow"}
        result = subprocess.run(
            command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        return result.returncode, result.stdout

    def result(self, name):
        return self.folder / "results" / "tiny" / name

    def logs(self):
        return "\n".join(f"== {path}\n{path.read_text()}" for path in sorted(self.result("logs").glob("*.log")))


def planned(output):
    """Rule -> number of jobs, from the table that Snakemake prints."""
    return {name: int(count) for name, count in re.findall(r"^(\w+) +(\d+)$", output, re.M)}


def with_overlay(workflow, folder, **sections):
    path = folder / "overlay.yaml"
    path.write_text(yaml.safe_dump(sections))
    return replace(workflow, overlays=(path,))


def hashes(folder):
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.rglob("*")) if path.is_file()}


def edited_project(folder, module):
    """A copy of the project with one statement more in a module."""
    ignored = shutil.ignore_patterns(".git", ".venv", "results", ".snakemake", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, folder, ignore=ignored)
    with open(folder / module, "a") as file:
        file.write("\nEDITED = True\n")
    return folder


def without_time(table):
    """A table without its columns of time, or without its rows of it."""
    rows = ~table["metric"].isin(TIMED) if "metric" in table else slice(None)
    return table.loc[rows, [column for column in table if not column.startswith(TIMED)]]
