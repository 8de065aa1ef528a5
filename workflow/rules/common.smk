"""Helpers of the rules: the checked config, paths, code fingerprints, methods and their inputs."""

import json
import sys
from pathlib import Path

from lantern.config import describe_folder, tree_settings, uses_gpu, validate_config
from lantern.environment import set_job_environment
from lantern.fingerprint import code_fingerprint
from lantern.methods import expand_methods

try:
    validate_config(config)
except ValueError as error:
    sys.exit(str(error))

set_job_environment(workflow.basedir)

FIGURES = ["fig_a_samples", "fig_b_tradeoff", "fig_c_ambiguity"]
ENVIRONMENT = "../../environment.yml"
SCRIPTS = Path(workflow.basedir) / "workflow" / "scripts"
SEED = config["seed"]
DEVICE = config["device"]
GPU = int(uses_gpu(DEVICE))
PROMPT_SETS = [name for name, entry in config["prompts"].items() if entry is not None]
RUNS = [(run.spec, f"{run.temperature:g}") for run in expand_methods(config)]
SPECS = {spec.method_id: spec for spec, _ in RUNS}
TEMPERATURES = sorted({temperature for _, temperature in RUNS})
# What a folder of images holds is part of the config as far as re-running is concerned.
DATA = {"data": config["data"], "listing": describe_folder(config["data"]["folder"])}

# The report's front page reads its numbers from here; a first run has none yet.
VERDICT = Path("results", config["experiment"], "verdict.json")
config["numbers"] = json.loads(VERDICT.read_text())["numbers"] if VERDICT.is_file() else {}


wildcard_constraints:
    prompt_set="|".join(PROMPT_SETS),
    method="|".join(SPECS).replace(".", r"\."),
    temperature=r"[0-9.]+",
    neighbours=r"[a-z0-9_]+",


def stage(*parts):
    """Path of a file below results/<experiment>/."""
    return Path("results", config["experiment"], *parts).as_posix()


def log_of(*parts):
    """Log file of a rule: results/<experiment>/logs/<rule>[.<wildcards>].log."""
    return stage("logs", ".".join(parts) + ".log")


def code(script):
    """Fingerprint of a script and of what it imports from lantern/: a parameter, so that edits re-run what uses them."""
    return code_fingerprint(SCRIPTS / script)


def methods_at(temperature):
    """Method ids that run at a temperature (text), in the config's order."""
    return [spec.method_id for spec, found in RUNS if found == temperature]


def table_of(spec):
    """Table of nearest codes that a method reads; no file for an exact method."""
    return stage("codebook", f"{spec.neighbours}.safetensors") if spec.neighbours else []


def all_tables():
    """Tables of nearest codes of all methods."""
    return sorted({table_of(spec) for spec in SPECS.values() if spec.neighbours})


def shards_of(prompt_set, temperature):
    """Record files of all methods of a prompt set at a temperature."""
    return [
        file
        for method in methods_at(temperature)
        for file in gather.shards(
            stage("generation", method, prompt_set, f"T{temperature}", "{scatteritem}.safetensors")
        )
    ]


def quality_tables(ending):
    """Quality tables of all prompt sets and temperatures; ending is "csv" (one row a method) or "images.csv"."""
    return [stage("quality", f"{name}.T{temperature}.{ending}") for name in PROMPT_SETS for temperature in TEMPERATURES]


def verdict_numbers(wildcards, input):
    """Numbers that the captions interpolate: name -> text. Snakemake shows TBD while the file is still to be made."""
    return json.loads(Path(input.verdict).read_text())["numbers"]
