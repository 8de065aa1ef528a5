"""One tiny run of the real Snakefile, shared by the tests of this folder."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TINY = Path(__file__).parent / "tiny.yaml"


@dataclass
class Workflow:
    """The project's Snakefile, run in a folder of its own on the tiny config (and overlays)."""

    folder: Path
    overlays: tuple = ()

    def command(self, *arguments):
        configs = [str(path) for path in (ROOT / "config.yaml", TINY, *self.overlays)]
        snakefile = ["--snakefile", str(ROOT / "Snakefile"), "--directory", str(self.folder)]
        return [sys.executable, "-m", "snakemake", *snakefile, "--cores", "2", *arguments, "--configfile", *configs]

    def run(self, *arguments, env=None, timeout=240):
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

    def result(self, name):
        return self.folder / "results" / "tiny" / name

    def logs(self):
        return "\n".join(f"== {path}\n{path.read_text()}" for path in sorted(self.result("logs").glob("*.log")))


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A finished tiny run. Tests read it; who changes something takes `copy_of_finished`."""
    workflow = Workflow(tmp_path_factory.mktemp("tiny"))
    code, output = workflow.run()
    assert code == 0, output + workflow.logs()
    workflow.output = output
    return workflow


@pytest.fixture
def copy_of_finished(finished, tmp_path):
    """A copy of the finished run, file dates and Snakemake's records included."""
    shutil.copytree(finished.folder, tmp_path / "run", symlinks=True)
    return Workflow(tmp_path / "run")
