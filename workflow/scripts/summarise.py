"""Join quality, latency and total variation into the table of results, and compute the claims."""

import math

from lantern.io import read_json, write_json, write_text
from lantern_pipeline.data.tables import read_table, read_tables, write_table
from lantern_pipeline.job.context import job_log
from lantern_pipeline.tables.claims import describe_run, find_claims
from lantern_pipeline.tables.comparisons import build_paired
from lantern_pipeline.tables.markdown import (
    best_cells,
    claim_cells,
    html_page,
    method_cells,
    results_table,
    verdict_cells,
)
from lantern_pipeline.tables.paper_claims import judge_papers
from lantern_pipeline.tables.summary import build_summary

with job_log(snakemake):
    files, params = snakemake.input, snakemake.params
    options = {"settings": params.settings, "seed": params.seed}
    images, latency = read_tables(files.images), read_tables(files.latency)
    targets = [read_json(path) for path in files.target]
    entropies = [report.get("val_cross_entropy", math.nan) for report in targets]  # a published target has none
    cross_entropy = dict(zip(params.training_seeds, entropies, strict=True))
    quality, total_variation = read_tables(files.quality), read_table(files.total_variation)
    summary = build_summary(quality, images, latency, total_variation, cross_entropy, **options)
    write_table(snakemake.output.summary, summary)
    write_table(snakemake.output.paired, build_paired(images, latency, **options))
    reports = {name: read_json(files[name]) for name in ("tokenizer", *params.trained)}
    # With several training seeds, claims are about the mean target.
    reports["target"] = targets[0] if len(targets) == 1 else {"val_cross_entropy": sum(entropies) / len(entropies)}
    claims = find_claims(summary, read_table(files.curves), images, reports, **options)
    claims["papers"] = judge_papers(summary, images, read_table(files.ambiguity), **options)
    write_json(snakemake.output.claims, claims)
    table = results_table(summary, params.settings)
    folded = {"All claims in numbers (claims.json)": claim_cells(claims)}
    blocks = [describe_run(claims["setting"]), best_cells(claims), method_cells(table)]
    # empty if the run has none of the papers' methods
    if claims["papers"]:
        blocks += ["The papers' claims, here", verdict_cells(claims["papers"])]
    page = html_page("Main results", *blocks, folded=folded)
    write_text(snakemake.output.page, page)
