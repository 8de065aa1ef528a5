"""Write a table that compares numbers in publications with the numbers of this run."""

from lantern_pipeline.data.tables import read_table, write_table
from lantern_pipeline.job.context import job_log
from lantern_pipeline.tables.comparisons import compare_with_published, read_published

with job_log(snakemake):
    files, params = snakemake.input, snakemake.params
    published, summary = read_published(), read_table(files.summary)
    write_table(snakemake.output[0], compare_with_published(published, summary, params.settings, params.model))
