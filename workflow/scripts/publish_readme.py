"""Write the tables, the figures and the claims (numbers of conclusions) of a run into README.md and docs/."""

import shutil
from pathlib import Path

from lantern.io import atomic_path, read_json, write_json
from lantern_pipeline.data.tables import read_table, write_table
from lantern_pipeline.runtime.job import job_log
from lantern_pipeline.tables.documents import publish
from lantern_pipeline.tables.generality import find_generality_claims
from lantern_pipeline.tables.markdown import results_table

with job_log(snakemake) as log:
    files, section, docs = snakemake.input, snakemake.params.section, Path(snakemake.params.root, "docs")
    table = read_table(files.table)
    if "differs" in table:  # a table of several targets
        claims = find_generality_claims(table)
    else:
        table, claims = results_table(table, snakemake.params.settings), read_json(files.claims)
    write_table(docs / f"{section}.csv", table)
    write_json(docs / "claims.json", {**read_json(docs / "claims.json"), section: claims})
    for picture in map(Path, files.pictures):
        with atomic_path(docs / picture.name) as temporary:
            shutil.copyfile(picture, temporary)
    log.info("changed %s", publish(docs.parent))
