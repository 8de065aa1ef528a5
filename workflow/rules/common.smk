"""Helpers of the rules: the checked config, what it plans, settings that rules share. Paths are in config/paths.py."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

# Both packages are this folder's, whether they are installed or not.
sys.path[:0] = [HERE, f"{HERE}/workflow"]

from lantern.models.families import FAMILIES
from lantern_pipeline.config.figures import GENERALITY, figure_table
from lantern_pipeline.config.partitions import check_partitions
from lantern_pipeline.config.paths import (
    TOKENIZER,
    RunPlan,
    answer_files,
    drafter_for,
    drafter_of,
    drafter_settings,
    model_of,
    table_of,
    tables_of,
    target_of,
)
from lantern_pipeline.config.resources import MOST_MINUTES, JobSizes, growing
from lantern_pipeline.data.model_cards import FROM_FILES, TARGET_KEYS, card_of, card_sections, hub_entries
from lantern_pipeline.config.validate import check_config_files, describe_folder, uses_gpu, validate_config
from lantern_pipeline.config.user_files import check_user_files
from lantern_pipeline.fetch.entries import parse_entries, resource_of
from lantern_pipeline.measure.registry import check_choices, loading_modules, published_files, trained_models
from lantern_pipeline.runtime.fingerprint import code_fingerprint
from lantern_pipeline.runtime.machine import find_own_classes, limit_memory, set_job_environment

# With --jobs, as in profiles/slurm, jobs run on other machines than this one.
IS_REMOTE = workflow.nodes is not None
find_own_classes(config, workflow.configfiles)
try:
    if workflow.is_main_process:
        check_config_files(workflow.configfiles)
    # A published model's card stands between config.yaml and what the user says.
    update_config(config, {**card_sections(config["model"]), "resources": hub_entries()})
    update_config(config, GIVEN)
    validate_config(config)
    RESOURCES = parse_entries(config["resources"])
    check_choices(config["metrics"], RESOURCES)
    if workflow.is_main_process:
        check_user_files(config, RESOURCES, is_local=not IS_REMOTE)
except ValueError as error:
    sys.exit(f"variant {config['variant']}: {error}" if "variant" in config else str(error))

set_job_environment(HERE)
limit_memory(workflow)


onstart:
    try:
        check_partitions(workflow)
    except ValueError as error:
        sys.exit(str(error))


# A variant is this workflow once more as a module, see variants.smk: what it makes is read by rules, not shown in the report, and its
# trainings leave a core to those of others.
IS_VARIANT = "variant" in config
TRAINING_THREADS = 1 if config["variants"] or IS_VARIANT else 2
if IS_VARIANT:

    def report(path, **shown):
        return path


ENVIRONMENT = "../../environment.yml"
PIPELINE = Path(HERE, "workflow", "lantern_pipeline")
PLAN = RunPlan(config, RESOURCES)
FIRST, HEADLINE, SAMPLED = PLAN.first, PLAN.headline, PLAN.sampled
SETTING = {**HEADLINE, "cfg_scale": f"{config['sampling']['cfg_scale']:g}"}  # as captions of figures name it
FIGURES = figure_table(PLAN, config)
SEED, DEVICE, SOURCE = config["seed"], config["device"], config["data"]["source"]
GPU = int(uses_gpu(DEVICE, IS_REMOTE))
SIZES = JobSizes(config, has_gpu=bool(GPU))
# Weights and real images from elsewhere, looked at before anything is generated; none where the run trains its own.
METRIC_FILES = published_files(config["metrics"], RESOURCES)
# What a folder of images holds is part of the config as far as re-running is concerned; in how many jobs it is read is not.
DATA = {
    "data": {
        **{key: value for key, value in config["data"].items() if key not in ("num_shards", "captions")},
        "max_words": config["text"]["max_tokens"],
    },
    "listing": describe_folder(config["data"]["folder"]),
}
# Held-out images with captions of the run's own: what ceilings and ambiguity are measured on.
HAS_HELD_OUT = SOURCE in ("scenes", "folder") and config["text"]["encoder"] in ("words", "word_ids", "classes")
STORES_TEXT = config["text"]["encoder"] == "t5"  # others are encoded on the fly
# Of a text encoder that is one.
PROMPT_TOKENIZER = (
    [resource_of(config["text"]["checkpoint"], RESOURCES)] if config["text"]["encoder"] in FAMILIES else []
)


def settings_of(section, *keys):
    """Settings of a section of the config, those that a script reads: a change of another one does not re-run it.

    What says how a job runs and not what it makes (device, batch_size, stepping, num_shards) is no parameter at all:
    scripts read it from `snakemake.config`.
    """
    return {key: config[section][key] for key in keys}


# Parameters of jobs that read captions, and of jobs that decode.
# A prompt may say how large the image is.
TEXT = {
    **settings_of("text", "encoder", "num_classes", "caption_dim", "max_tokens", "checkpoint"),
    "grids": [config["tokenizer"]["grid"], config["target"]["small_grid"]],
}
TEXT_PARAMS = {"text": TEXT, "source": SOURCE}
DECODING_PARAMS = {**TEXT_PARAMS, "sampling": config["sampling"], "dtype": config["generation"]["dtype"]}
# What images are measured with, and what tables are made by.
MEASURED_WITH = settings_of("metrics", "fidelity", "clip", "prompt_accuracy", "hps", "published")
TABLE_SETTINGS = settings_of("metrics", "bootstrap_resamples", "headline_prompt_set", "headline_temperature")


def code(script, *others):
    """Fingerprint of a script, of what it imports and of files of the pipeline by name: edits re-run what uses them.

    A parameter that Snakemake asks for job by job, so that no process works out those of other rules' scripts.
    """
    files = [PIPELINE.parent / "scripts" / script, *(PIPELINE / name for name in others)]
    return lambda wildcards: " ".join(code_fingerprint(file) for file in files)


def shards_of(files):
    """Record files of all shards, for paths that hold {scatteritem}."""
    return [shard for file in files for shard in gather.shards(file)]


def text_features_of(*prompt_sets):
    """Stored text features of prompt sets, or the tokenizer's file; none where words are embedded on the fly."""
    files = [f"<results>/text/{name}/features-{{scatteritem}}.safetensors" for name in prompt_sets if STORES_TEXT]
    return PROMPT_TOKENIZER + gather.text_shards(files, allow_missing=True)


def caption_features_of(split):
    """Stored text features of the training captions of a split; else as `text_features_of`."""
    file = f"<results>/captions/{split}/features-{{scatteritem}}.safetensors"
    return gather.image_shards(file) if STORES_TEXT else PROMPT_TOKENIZER


def codes_of(split):
    """Codes of the source's images of a split, train or val."""
    return gather.image_shards(f"<results>/codes/{split}-{{scatteritem}}.safetensors")


def drafter_codes_of(split):
    """Codes that a draft model learns from: the source's images, or images that its target drew."""
    if config["drafter"]["codes"] == "images":
        return codes_of(split)
    file = f"<results>/samples/s{{training_seed}}/{split}-{{scatteritem}}.safetensors"
    return gather.image_shards(file, allow_missing=True)


def num_drawn(wildcards):
    """Images of a generation job."""
    return SIZES.images_of(wildcards.prompt_set, config["generation"]["num_shards"])


def methods_at(wildcards):
    """Methods that run at a temperature."""
    return PLAN.methods_at(wildcards.temperature)


def scoring_minutes(wildcards, attempt):
    """Time of a job that scores the images of a prompt set once; the ceilings are as many."""
    return SIZES.scoring_minutes(2 * SIZES.images_of(wildcards.prompt_set))(wildcards, attempt)


def result_table(path, caption, title):
    """A table that the report lists under "Results"; its caption is a page of workflow/report/."""
    return report(path, caption=f"../report/{caption}.rst", category="Results", labels={"table": title})


def page_templates(page):
    """Templates of a page, for `code`. As inputs they would have an absolute path, which the report shows and which
    makes the page again in a clone that was moved.
    """
    return [f"pages/{name}.html" for name in (page, "page_shell")]


def claim_numbers(wildcards, input):
    """Numbers that the captions interpolate: name -> text. Snakemake shows TBD while the file is still to be made."""
    return json.loads(Path(input.claims).read_text())["setting"]


def figure_files(endings=("png", "pdf")):
    """All figures, each in every format."""
    names = [f"fig_{figure.letter}_{name}" for name, figure in FIGURES.items()]
    return expand("<results>/figures/{name}.{ending}", name=names, ending=endings)
