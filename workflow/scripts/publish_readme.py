"""Write the tables, the figures and the claims of a run into README.md and docs/."""

import shutil
from pathlib import Path

import pandas as pd

from lantern.io import atomic_path, read_json, write_json
from lantern_pipeline.data.tables import read_table, write_table
from lantern_pipeline.job.context import job_log
from lantern_pipeline.tables.documents import publish
from lantern_pipeline.tables.generality import find_generality_claims
from lantern_pipeline.tables.markdown import results_table
from lantern_pipeline.tables.summary import select_headline

with job_log(snakemake) as log:
    files, section, docs = snakemake.input, snakemake.params.section, Path(snakemake.params.root, "docs")
    table = read_table(files.table)
    if "differs" in table:  # a table of several targets
        claims = find_generality_claims(table)
    else:
        settings, claims = snakemake.params.settings, read_json(files.claims)
        parts = [results_table(table, settings)]
        # Pages about papers also state numbers of greedy decoding.
        if section.endswith("papers"):
            parts.append(select_headline(table, {**settings, "headline_temperature": 0.0}))
        table = pd.concat(parts, ignore_index=True)
    write_table(docs / f"{section}.csv", table)
    # one file for all runs, each of which replaces its section only
    write_json(docs / "claims.json", {**read_json(docs / "claims.json"), section: claims})
    for picture in map(Path, files.pictures):
        with atomic_path(docs / picture.name) as temporary:
            shutil.copyfile(picture, temporary)
    log.info("changed %s", publish(docs.parent))
