"""Helpers of the rules: the checked config, what runs, folders, code fingerprints. Paths of inputs are in paths.smk."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

# Both packages are this folder's, whether they are installed or not.
sys.path[:0] = [workflow.basedir, f"{workflow.basedir}/workflow"]

from lantern_pipeline.config.methods import expand_ablations, expand_methods, table_file
from lantern_pipeline.config.validate import check_config_files, describe_folder, uses_gpu, validate_config
from lantern_pipeline.runtime.environment import set_job_environment
from lantern_pipeline.runtime.fingerprint import code_fingerprint
from lantern_pipeline.config.resources import JobSizes, disk_mb, growing
from lantern_pipeline.runtime.machine import memory_bytes
from lantern_pipeline.metrics.registry import check_choices, metric_files, published_files, trained_models
from lantern_pipeline.data.user_files import check_user_files
from lantern_pipeline.downloads.entries import parse_entries, resource_of
from lantern_pipeline.runtime.locks import RunLock

RUN_LOCK = RunLock()
try:
    if workflow.is_main_process:
        RUN_LOCK.check(sys.argv)
        check_config_files(workflow.configfiles)
    validate_config(config)
    RESOURCES = parse_entries(config["resources"])
    check_choices(config["metrics"], RESOURCES)
    if workflow.is_main_process:
        check_user_files(config, RESOURCES)
except ValueError as error:
    sys.exit(str(error))

set_job_environment(workflow.basedir)

# Jobs side by side on one machine ask for no more memory than it has; one that asks for more by itself runs alone.
# Elsewhere (`--jobs`) each job has a machine's.
MEMORY = memory_bytes()
IS_LOCAL = workflow.is_main_process and workflow.global_resources["_nodes"].value is None
if IS_LOCAL and MEMORY and "mem_mb" not in workflow.global_resources:
    workflow.register_resource("mem_mb", MEMORY // 10**6)


onstart:
    RUN_LOCK.hold()


ENVIRONMENT = "../../environment.yml"
SCRIPTS = Path(workflow.basedir) / "workflow" / "scripts"
SEED = config["seed"]
DEVICE = config["device"]
GPU = int(uses_gpu(DEVICE))
SIZES = JobSizes(config, has_gpu=bool(GPU))
PROMPT_SETS = [name for name, entry in config["prompts"].items() if entry is not None]
RUNS = [(run.spec, f"{run.temperature:g}") for run in expand_methods(config)]
SPECS = {spec.method_id: spec for spec, _ in RUNS}
TEMPERATURES = sorted({temperature for _, temperature in RUNS}, key=float)
ABLATIONS = expand_ablations(config)
REPEATS = [f"s{t}n{n}" for t in config["repeats"]["training_seeds"] for n in config["repeats"]["noise_seeds"]]
# Ablations, laws and pictures are of the first repeat.
FIRST = {"training_seed": config["repeats"]["training_seeds"][0], "noise_seed": config["repeats"]["noise_seeds"][0]}
HEADLINE = {
    "prompt_set": config["metrics"]["headline_prompt_set"],
    "temperature": f"{config['metrics']['headline_temperature']:g}",
}
# Laws are of sampled tokens: at a greedy headline, those of the highest temperature that runs.
LAW = HEADLINE if HEADLINE["temperature"] != "0" else {**HEADLINE, "temperature": TEMPERATURES[-1]}
# Weights and real images from elsewhere, looked at before anything is generated; none where the run trains its rulers.
METRIC_FILES = published_files(config["metrics"], RESOURCES)
# What a folder of images holds is part of the config as far as re-running is concerned; in how many jobs it is read is not.
DATA = {
    "data": {key: value for key, value in config["data"].items() if key not in ("num_shards", "captions")},
    "listing": describe_folder(config["data"]["folder"]),
}
SOURCE = config["data"]["source"]
# Held-out images with captions of the run's own: what ceilings and ambiguity are measured on.
HAS_HELD_OUT = SOURCE in ("scenes", "folder") and config["text"]["encoder"] == "words"

PUBLISHED_RESULTS = Path(workflow.basedir, "workflow/lantern_pipeline/analysis/published_results.csv").as_posix()

FIGURES = [
    "fig_a_samples",
    "fig_b_tradeoff",
    "fig_c_ambiguity",
    "fig_d_aggregation",
    "fig_e_latent_proximity",
    "fig_f_speed_bars",
    "fig_h_total_variation",
    "fig_i_acceptance_map",
    "fig_j_step_time",
    "fig_l_published",
    "fig_m_divergence",
]
# Figures of what a config may leave out: an ablation, a pair of coupled methods, every ablation.
COUPLED = {
    spec.is_relaxed for spec, temperature in RUNS if (spec.drafts, temperature) == ("coupled", HEADLINE["temperature"])
}
FIGURES += ["fig_g_neighbours"] if "neighbours" in ABLATIONS else []
FIGURES += ["fig_k_pairs"] if config["figures"]["pair_methods"] or COUPLED == {True, False} else []
FIGURES += ["fig_n_ablations"] if ABLATIONS else []


wildcard_constraints:
    prompt_set="|".join(PROMPT_SETS),
    method="|".join(SPECS).replace(".", r"\."),
    temperature=r"[0-9.e-]+",
    neighbours=r"[a-z0-9_]+",
    ablation="|".join(ABLATIONS) or "none",
    training_seed=r"\d+",
    noise_seed=r"\d+",
    repeat=r"s\d+n\d+",
    split="train|val",
    drafter=r"s\d+(-\d+steps)?",


def stage(*parts):
    """Path of a file below results/<experiment>/."""
    return Path("results", config["experiment"], *parts).as_posix()


def metric_inputs(metrics):
    """Names and paths of the inputs by which images are measured, as a config section `metrics` wants it."""
    trained = {name: stage(name, "model.safetensors") for name in ("attribute_classifier", "clip")}
    return metric_files(metrics, trained, RESOURCES, stage("reference", "features.safetensors"))


def log_of(*parts):
    """Log file of a rule: results/<experiment>/logs/<rule>[.<wildcards>].log."""
    return stage("logs", ".".join(parts) + ".log")


def code(script):
    """Fingerprint of a script and of what it imports from lantern/: a parameter, so that edits re-run what uses them."""
    return code_fingerprint(SCRIPTS / script)


def num_drawn(wildcards):
    """Images of a generation job."""
    return SIZES.images_of(wildcards.prompt_set, config["generation"]["num_shards"])


def num_measured(wildcards):
    """Images of a job that measures a prompt set's images of all methods at a temperature."""
    return SIZES.images_of(wildcards.prompt_set) * len(methods_at(wildcards.temperature))


def num_texts(wildcards):
    """Texts of a job: those of a prompt set's shard, or of a shard of the training captions."""
    if "prompt_set" in wildcards.keys():
        return SIZES.images_of(wildcards.prompt_set, config["text"]["num_shards"])
    return ((config["data"]["captions"] or {}).get("num") or 100_000) // config["data"]["num_shards"]
