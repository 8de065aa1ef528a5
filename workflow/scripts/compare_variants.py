"""Puts the methods' rows on every target of the run into one table, and says in words what came out."""

import pandas as pd

from lantern.io import write_text
from lantern_pipeline.analysis.generality import COLUMNS, describe_changes, measure_gains, measure_masses
from lantern_pipeline.analysis.markdown import render_generality_page
from lantern_pipeline.analysis.targets import target_rows
from lantern_pipeline.archive.provenance import describe_maker
from lantern_pipeline.data.tables import read_table, write_table
from lantern_pipeline.runtime.job import job_log

with job_log(snakemake):
    files, params, parts = snakemake.input, snakemake.params, []
    options = {"num_resamples": params.settings["bootstrap_resamples"], "seed": params.seed}
    tables = zip(files.summary, files.paired, files.images, files.ambiguity, strict=True)
    for (name, changes), paths in zip(params.targets.items(), tables, strict=True):
        summary, paired, images, ambiguity = map(read_table, paths)
        rows = target_rows(summary, paired, params.settings, describe_maker())
        rows = rows.join(measure_gains(rows, images, options))
        masses = measure_masses(ambiguity, params.cfg_scale, options)
        parts.append(rows.assign(target=name, differs=describe_changes(changes), **masses))
    table = pd.concat(parts, ignore_index=True)[list(COLUMNS)]
    write_table(snakemake.output.table, table)
    write_text(snakemake.output.page, render_generality_page(table))
