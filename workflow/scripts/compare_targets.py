"""Puts this run's rows beside stored ones of another target, and says in words what came out."""

from lantern.io import write_text
from lantern_pipeline.analysis.markdown import render_targets_page
from lantern_pipeline.analysis.targets import put_side_by_side, target_rows
from lantern_pipeline.archive.provenance import describe_maker
from lantern_pipeline.data.tables import read_table, write_table
from lantern_pipeline.runtime.job import job_log

with job_log(snakemake):
    files, params = snakemake.input, snakemake.params
    own = target_rows(read_table(files.summary), read_table(files.paired), params.settings, describe_maker())
    table = put_side_by_side(read_table(files.short_target), own)
    write_table(snakemake.output.table, table)
    steps = files.get("target_steps")
    write_text(snakemake.output.page, render_targets_page(table, steps and read_table(steps)))
