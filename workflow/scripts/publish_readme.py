"""Writes the table of results and the verdict into README.md, and copies its two pictures."""

import shutil
from pathlib import Path

from lantern.io import atomic_path, read_json
from lantern_pipeline.analysis.markdown import update_marked_block
from lantern_pipeline.runtime.job import job_log

with job_log(snakemake) as log:
    numbers = read_json(snakemake.input.verdict)["numbers"]
    table = Path(snakemake.input.table).read_text(encoding="utf-8")
    root = Path(snakemake.params.root)
    update_marked_block(
        root / "README.md", "\n\n".join([numbers["verdict"], numbers["findings"], numbers["rulers"], table])
    )
    for picture in snakemake.input.pictures:
        with atomic_path(root / "docs" / Path(picture).name) as temporary:
            shutil.copyfile(picture, temporary)
    log.info("wrote README.md and docs/")
