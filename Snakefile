"""Lantern: from captions to tables, figures and a report. `snakemake --cores all` runs everything on config.yaml."""

from snakemake.utils import min_version

min_version("9.0")


configfile: "config.yaml"
# The catalogue of files from elsewhere: beside the workflow, wherever that runs.
configfile: f"{workflow.basedir}/workflow/resources.yaml"


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/paths.smk"


scattergather:
    shards=config["generation"]["num_shards"],
    text_shards=config["text"]["num_shards"],
    image_shards=config["data"]["num_shards"],


include: "workflow/rules/resources.smk"
include: "workflow/rules/prompts.smk"
include: "workflow/rules/text.smk"
include: "workflow/rules/captions.smk"
include: "workflow/rules/world.smk"
include: "workflow/rules/tokenizer.smk"
include: "workflow/rules/target.smk"
include: "workflow/rules/drafter.smk"
include: "workflow/rules/published.smk"
include: "workflow/rules/codebook.smk"
include: "workflow/rules/generation.smk"
include: "workflow/rules/latency.smk"
include: "workflow/rules/reference.smk"
include: "workflow/rules/quality.smk"
include: "workflow/rules/ablations.smk"
include: "workflow/rules/total_variation.smk"
include: "workflow/rules/summary.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/evidence_figures.smk"
include: "workflow/rules/picture_figures.smk"
include: "workflow/rules/provenance.smk"
include: "workflow/rules/study.smk"


localrules:
    all,
    figures,


rule figures:
    input:
        figure_files(),


rule all:
    default_target: True
    input:
        rules.publish_tables.output,
        rules.compare_published.output,
        rules.figures.input,
        rules.write_provenance.output,
