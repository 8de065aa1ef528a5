"""Tests that jobs in a container start in the image that the Snakefile names. A script replaces Apptainer."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.tiny_run import Workflow

APPTAINER = """#!/bin/sh
if [ "$1" = --version ]; then echo "apptainer version 1.3.4"; exit; fi
echo "$*" >> calls.txt
while [ "$1" != -c ]; do shift; done
exec bash -c "$2"
"""


@pytest.mark.slow
def test_with_apptainer_a_job_runs_in_the_image_that_the_snakefile_names(tmp_path):
    (tmp_path / "apptainer").write_text(APPTAINER)
    (tmp_path / "apptainer").chmod(0o755)
    run, output = Workflow(tmp_path), "results/tiny/prompts/seen.jsonl"
    command = run.command("--sdm", "apptainer", "--apptainer-args=--nv", "--", output)
    path = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**run.environment(), "PATH": path}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0 and (tmp_path / output).exists(), result.stdout + result.stderr
    (call,) = (tmp_path / "calls.txt").read_text().splitlines()
    assert call.startswith(f"exec --home {tmp_path} --nv ") and " lantern.sif " in call
