"""Lantern: from prompts to tables, figures and a report. `snakemake --cores all` runs all of config.yaml."""

import re

from snakemake.utils import min_version

min_version("9.27")  # path variables; modules whose names are variables


# The folder of this file, also if another workflow uses it as a module.
HERE = workflow.current_basedir.get_path_or_uri(secret_free=True)


include: "workflow/rules/user_config.smk"


configfile: "config.yaml"
# The list of downloadable files is in the workflow's folder, wherever the run is.
configfile: f"{HERE}/workflow/resources.yaml"


include: "workflow/rules/default_config.smk"


# Container image of all jobs with `--sdm apptainer`, in the folder of the run. docs/cluster.md describes how to build it.
container: "lantern.sif"


pathvars:
    results=f"results/{config['experiment']}",
    logs="<results>/logs",


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"


scattergather:
    shards=CONFIG.generation.num_shards,
    text_shards=CONFIG.text.num_shards,
    image_shards=CONFIG.data.num_shards,
    score_shards=CONFIG.metrics.num_shards,


wildcard_constraints:
    prompt_set="|".join(PLAN.prompt_sets),
    method="|".join(map(re.escape, PLAN.specs)),
    temperature=r"[0-9.e-]+",
    neighbours=r"[a-z0-9_]+",
    ablation="|".join(PLAN.ablations) or "none",
    training_seed=r"\d+",
    noise_seed=r"\d+",
    split="train|val",


include: "workflow/rules/functions.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/models.smk"
include: "workflow/rules/generate.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/publish.smk"
include: "workflow/rules/study.smk"
include: "workflow/rules/variants.smk"


rule figures:
    input:
        figure_files(),
    localrule: True


rule all:
    default_target: True
    input:
        rules.write_provenance.input,  # requested explicitly, so that a missing file is made again
        rules.write_provenance.output,
    localrule: True
