"""Joins quality, latency and total variation into the table of results, and says in words what came out."""

import math
from dataclasses import asdict
from pathlib import Path

from lantern.io import read_json, write_json, write_text
from lantern_pipeline.analysis.comparisons import build_paired
from lantern_pipeline.analysis.findings import caption_numbers, find_answers
from lantern_pipeline.analysis.front_page import describe_front
from lantern_pipeline.analysis.markdown import render_page, results_table
from lantern_pipeline.analysis.peers import find_about_peers
from lantern_pipeline.analysis.summary import Measurements, build_summary
from lantern_pipeline.data.tables import read_table, read_tables, write_table
from lantern_pipeline.runtime.job import job_log

with job_log(snakemake):
    files, params = snakemake.input, snakemake.params
    images, latency, options = read_tables(files.images), read_tables(files.latency), {"settings": params.settings}
    targets = [read_json(path) for path in files.target]
    entropies = [report.get("val_cross_entropy", math.nan) for report in targets]  # a published target has none
    cross_entropy = dict(zip(params.training_seeds, entropies, strict=True))
    tables = Measurements(read_tables(files.quality), images, latency, read_table(files.total_variation), cross_entropy)
    summary = build_summary(tables, **options, seed=params.seed)
    write_table(snakemake.output.summary, summary)
    write_table(snakemake.output.paired, build_paired(images, latency, **options, seed=params.seed))
    reports = {name: read_json(files[name]) for name in ("tokenizer", *params.trained)}
    reports["target"] = targets[0] if len(targets) == 1 else {"val_cross_entropy": sum(entropies) / len(entropies)}
    ablations = {Path(path).name.partition(".")[0]: read_table(path) for path in files.ablations}
    findings = find_answers(summary, read_table(files.curves), ablations, reports, **options, seed=params.seed)
    findings += find_about_peers(summary, images, **options, seed=params.seed)
    texts = {"numbers": caption_numbers(summary, params.settings), "front": describe_front(summary, params.settings)}
    write_json(snakemake.output.findings, {**texts, "findings": [asdict(finding) for finding in findings]})
    write_text(snakemake.output.page, render_page(findings, results_table(summary, params.settings)))
