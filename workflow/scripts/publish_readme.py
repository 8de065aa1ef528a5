"""Writes a run's results into the repository: README.md and docs/, or a table of docs/targets/."""

import shutil
from pathlib import Path

from lantern.io import atomic_path
from lantern_pipeline.analysis.markdown import publish, results_table
from lantern_pipeline.analysis.targets import target_rows
from lantern_pipeline.archive.provenance import describe_maker
from lantern_pipeline.data.tables import read_table, write_table
from lantern_pipeline.runtime.job import job_log


def copy(source: str, path: Path) -> None:
    """Copies a file over another one, whole or not at all."""
    with atomic_path(path) as temporary:
        shutil.copyfile(source, temporary)


with job_log(snakemake) as log:
    files, params = snakemake.input, snakemake.params
    docs = Path(params.root, "docs")
    match params.what:
        case "short_target":
            table = target_rows(read_table(files.summary), read_table(files.paired), params.settings, describe_maker())
            write_table(docs / "targets" / "short_target.csv", table)
        case "target_steps":
            table = read_table(files.table).assign(made_by=describe_maker())
            write_table(docs / "targets" / "target_steps.csv", table)
        case "generality":
            write_table(docs / "generality.csv", read_table(files.table))
            copy(files.pictures[0], docs / Path(files.pictures[0]).name)
            publish(Path(params.root))
        case "peers":
            write_table(docs / "peers.csv", results_table(read_table(files.summary), params.settings))
            copy(files.findings, docs / "peers.json")
            copy(files.pictures[0], docs / Path(files.pictures[0]).name)
            publish(Path(params.root))
        case "readme":
            write_table(docs / "results.csv", results_table(read_table(files.summary), params.settings))
            for file in (files.findings, *files.targets, *files.pictures):
                copy(file, docs / Path(file).name)
            publish(Path(params.root))
    log.info("wrote %s", params.what)
