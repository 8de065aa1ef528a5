"""Writes the results into README.md and docs/results.md, and what they are made of into docs/."""

import shutil
from pathlib import Path

from lantern.io import atomic_path
from lantern_pipeline.analysis.markdown import publish, results_table
from lantern_pipeline.data.tables import read_table, write_table
from lantern_pipeline.runtime.job import job_log

with job_log(snakemake) as log:
    files, params = snakemake.input, snakemake.params
    root = Path(params.root)
    write_table(root / "docs" / "results.csv", results_table(read_table(files.summary), params.settings))
    for file in (files.findings, *files.pictures):
        with atomic_path(root / "docs" / Path(file).name) as temporary:
            shutil.copyfile(file, temporary)
    publish(root)
    log.info("wrote README.md and docs/")
