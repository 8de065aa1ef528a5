"""Joins quality and latency into the table of results, and says in numbers and words what came out."""

from lantern.io import read_json, read_table, write_json, write_table, write_text
from lantern.job import job_log
from lantern.metrics.markdown import render_markdown
from lantern.metrics.summary import build_summary
from lantern.metrics.verdict import compute_verdict

with job_log(snakemake):
    params = snakemake.params
    summary = build_summary(
        [read_table(path) for path in snakemake.input.quality],
        [read_table(path) for path in snakemake.input.images],
        read_table(snakemake.input.latency),
        settings=params.settings,
        seed=params.seed,
    )
    write_table(snakemake.output.summary, summary)
    reports = {name: read_json(snakemake.input[name]) for name in ("tokenizer", "target", "recogniser", "clip")}
    write_json(snakemake.output.verdict, compute_verdict(summary, settings=params.settings, reports=reports))
    write_text(snakemake.output.table, render_markdown(summary, settings=params.settings))
