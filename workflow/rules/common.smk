"""Helpers of the rules: the checked config, paths, code fingerprints, methods and their inputs."""

import json
import sys
from pathlib import Path

from lantern.config import describe_folder, table_file, tree_settings, uses_gpu, validate_config
from lantern.environment import set_job_environment
from lantern.fingerprint import code_fingerprint
from lantern.methods import expand_ablations, expand_methods
from lantern.metrics.choices import check_choices, metric_files, trained_models
from lantern.resources.entries import parse_entries, resource_of

try:
    validate_config(config)
    RESOURCES = parse_entries(config["resources"])
    check_choices(config["metrics"], RESOURCES)
except ValueError as error:
    sys.exit(str(error))

set_job_environment(workflow.basedir)

ENVIRONMENT = "../../environment.yml"
SCRIPTS = Path(workflow.basedir) / "workflow" / "scripts"
SEED = config["seed"]
DEVICE = config["device"]
GPU = int(uses_gpu(DEVICE))
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
# What a folder of images holds is part of the config as far as re-running is concerned; in how many jobs it is read is not.
DATA = {
    "data": {key: value for key, value in config["data"].items() if key not in ("num_shards", "captions")},
    "listing": describe_folder(config["data"]["folder"]),
}
SOURCE = config["data"]["source"]
# Held-out images with captions of the run's own: what ceilings and ambiguity are measured on.
HAS_HELD_OUT = SOURCE in ("scenes", "folder") and config["text"]["encoder"] == "words"

# The report's front page reads its numbers from here; a first run has none yet.
VERDICT = Path("results", config["experiment"], "verdict.json")
config["numbers"] = json.loads(VERDICT.read_text())["numbers"] if VERDICT.is_file() else {}

PUBLISHED_RESULTS = Path(workflow.basedir, "lantern", "figures", "published_results.csv").as_posix()

FIGURES = [
    "fig_a_samples",
    "fig_b_tradeoff",
    "fig_c_ambiguity",
    "fig_d_aggregation",
    "fig_e_latent_proximity",
    "fig_f_speed_bars",
    "fig_h_law",
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
    trained = {name: stage(name, "model.safetensors") for name in ("recogniser", "clip")}
    return metric_files(metrics, trained, RESOURCES, stage("reference", "features.safetensors"))


def log_of(*parts):
    """Log file of a rule: results/<experiment>/logs/<rule>[.<wildcards>].log."""
    return stage("logs", ".".join(parts) + ".log")


def code(script):
    """Fingerprint of a script and of what it imports from lantern/: a parameter, so that edits re-run what uses them."""
    return code_fingerprint(SCRIPTS / script)


def methods_at(temperature):
    """Method ids that run at a temperature (text), in the config's order."""
    return [spec.method_id for spec, found in RUNS if found == temperature]


# Paths instead of outputs by name, since the config decides whether a model is trained or converted.
TOKENIZER = stage("tokenizer", "model.safetensors")


def target_of(training_seed):
    """Target model of a training seed."""
    return stage("target", f"s{training_seed}", "model.safetensors")


def drafter_of(training_seed, num_steps=None):
    """Draft model of a training seed; with a number of training steps, the one of an ablation."""
    return stage("drafter", f"s{training_seed}" + (f"-{num_steps}steps" if num_steps else ""), "model.safetensors")


def drafter_seed(wildcards):
    """Training seed of a drafter, from a name such as s0 or s0-40steps."""
    return int(wildcards.drafter.partition("-")[0].removeprefix("s"))


def drafter_settings(wildcards):
    """Config section `drafter` of a drafter; an ablation's has a number of training steps of its own."""
    steps = wildcards.drafter.partition("-")[2].removesuffix("steps")
    return {**config["drafter"], "num_steps": int(steps), "num_epochs": None} if steps else config["drafter"]


def table_of(spec, training_seed):
    """Table of nearest codes that a method reads; no file for an exact method."""
    if spec.neighbours is None:
        return []
    return stage("codebook", table_file(spec.neighbours, training_seed))


def tables_of(specs, training_seed):
    """Tables of nearest codes that some methods read."""
    return sorted({table_of(spec, training_seed) for spec in specs if spec.neighbours})


def steps_of(ablation):
    """Numbers of training steps of the draft models that an ablation needs; None is the run's own."""
    return list(dict.fromkeys(point.drafter_steps for point in ABLATIONS[ablation]))


def text_features_of(*prompt_sets):
    """Stored text features of prompt sets; no file where words are embedded on the fly."""
    if config["text"]["encoder"] == "words":
        return []
    return [
        file
        for prompt_set in prompt_sets
        for file in gather.text_shards(stage("text", prompt_set, "features-{scatteritem}.safetensors"))
    ]


def caption_features_of(split):
    """Stored text features of the training captions of a split; no file where words are embedded on the fly."""
    if config["text"]["encoder"] == "words":
        return []
    return gather.image_shards(stage("captions", split, "features-{scatteritem}.safetensors"))


def codes_of(split):
    """Codes of the source's images of a split, train or val."""
    return gather.image_shards(stage("codes", split + "-{scatteritem}.safetensors"))


def drafter_codes_of(split, training_seed):
    """Codes that a draft model learns from: the source's images, or images that its target drew."""
    if config["drafter"]["codes"] == "images":
        return codes_of(split)
    return gather.image_shards(stage("samples", f"s{training_seed}", split + "-{scatteritem}.safetensors"))


def shards_of(prompt_set, temperature, repeat, methods=None):
    """Record files of all methods (or of some) of a prompt set at a temperature, of one repeat."""
    return [
        file
        for method in methods or methods_at(temperature)
        for file in gather.shards(
            stage("generation", method, prompt_set, f"T{temperature}", repeat, "{scatteritem}.safetensors")
        )
    ]


def headline_records():
    """Record files behind the headline numbers' pictures: the first repeat's."""
    return shards_of(**HEADLINE, repeat=REPEATS[0])


def quality_tables(ending):
    """Quality tables of all prompt sets, temperatures and repeats: "csv" (one row a method), "images.csv", ..."""
    return [
        stage("quality", f"{name}.T{temperature}.{repeat}.{ending}")
        for name in PROMPT_SETS
        for temperature in TEMPERATURES
        for repeat in REPEATS
    ]


def verdict_numbers(wildcards, input):
    """Numbers that the captions interpolate: name -> text. Snakemake shows TBD while the file is still to be made."""
    return json.loads(Path(input.verdict).read_text())["numbers"]
