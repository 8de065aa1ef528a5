"""Joins quality, latency and law into the table of results, and says in numbers and words what came out."""

import math
from pathlib import Path

import pandas as pd

from lantern.io import read_json, write_json, write_text
from lantern_pipeline.analysis.comparisons import build_paired
from lantern_pipeline.analysis.findings import describe_findings
from lantern_pipeline.analysis.markdown import render_markdown
from lantern_pipeline.analysis.summary import Measurements, build_summary
from lantern_pipeline.analysis.verdict import compute_verdict
from lantern_pipeline.data.tables import read_table, write_table
from lantern_pipeline.runtime.job import job_log


def read_tables(paths: list[str]) -> pd.DataFrame:
    """Reads tables of the same columns into one."""
    return pd.concat([read_table(path) for path in paths], ignore_index=True)


with job_log(snakemake):
    params = snakemake.params
    images, latency = read_tables(snakemake.input.images), read_tables(snakemake.input.latency)
    targets = [read_json(path) for path in snakemake.input.target]
    entropies = [report.get("val_cross_entropy", math.nan) for report in targets]  # a published target has none
    measurements = Measurements(
        quality=read_tables(snakemake.input.quality),
        images=images,
        latency=latency,
        law=read_table(snakemake.input.law),
        cross_entropy=dict(zip(params.training_seeds, entropies, strict=True)),
    )
    summary = build_summary(measurements, settings=params.settings, seed=params.seed)
    write_table(snakemake.output.summary, summary)
    write_table(snakemake.output.paired, build_paired(images, latency, settings=params.settings, seed=params.seed))
    reports = {name: read_json(snakemake.input[name]) for name in ("tokenizer", *params.trained)}
    reports["target"] = targets[0] if len(targets) == 1 else {"val_cross_entropy": sum(entropies) / len(entropies)}
    verdict = compute_verdict(summary, settings=params.settings, reports=reports)
    curves = read_table(snakemake.input.curves)
    ablations = {Path(path).name.partition(".")[0]: read_table(path) for path in snakemake.input.ablations}
    findings = describe_findings(summary, curves, ablations, settings=params.settings, seed=params.seed)
    verdict["numbers"]["findings"] = findings
    write_json(snakemake.output.verdict, verdict)
    write_text(snakemake.output.table, render_markdown(summary, settings=params.settings))
