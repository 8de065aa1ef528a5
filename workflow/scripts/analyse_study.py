"""Compute preference rates with intervals from the answer files of the preference study."""

from lantern.io import write_json
from lantern_pipeline.data.tables import write_table
from lantern_pipeline.job.context import job_log
from lantern_pipeline.pages.study_analysis import analyse_answers, read_key

with job_log(snakemake):
    files = snakemake.input
    # The key alone states which image of a pair is the autoregressive one: the page does not tell its readers.
    table, about = analyse_answers(files.answers, read_key(files.key), snakemake.params.min_checks)
    write_table(snakemake.output.table, table)
    write_json(snakemake.output.readers, about)
