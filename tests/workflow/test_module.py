"""Tests of the Snakefile as a module of a workflow in another folder, with a config on top of the defaults."""

import os
import subprocess
import sys

import pytest

from helpers.paths import ROOT

SNAKEFILE = f"""
configfile: "mine.yaml"

module lantern:
    snakefile: "{ROOT}/Snakefile"
    config: config

use rule * from lantern
"""


def start(folder, text, *arguments):
    (folder / "Snakefile").write_text(SNAKEFILE)
    (folder / "mine.yaml").write_text(text)
    command = [sys.executable, "-m", "snakemake", "--cores", "1", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_module_finds_its_defaults_weights_and_scripts(tmp_path):
    quick = (ROOT / "experiments" / "quick.yaml").read_text()
    code, output = start(tmp_path, quick, "--dry-run")
    assert code == 0 and "results/quick/results.html" in output and "train_target" not in output, output
    model = "results/quick/target/s0/model.safetensors"
    code, output = start(tmp_path, quick, model)
    assert code == 0 and (tmp_path / model).is_file(), output


def test_a_module_says_what_is_wrong_with_its_config(tmp_path):
    code, output = start(tmp_path, "sampling:\n  top_k: -3\n", "--dry-run")
    assert code != 0 and "config key sampling.top_k" in output, output
