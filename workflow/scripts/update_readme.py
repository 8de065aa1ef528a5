"""Puts the table of results into README.md, between its markers; only when asked for: `make readme`."""

from pathlib import Path

from lantern.io import write_text
from lantern.job import job_log
from lantern.metrics.markdown import update_marked_block

with job_log(snakemake):
    table = Path(snakemake.input.table).read_text(encoding="utf-8")
    update_marked_block(Path(snakemake.params.readme), table, name="results")
    write_text(snakemake.output[0], table)
