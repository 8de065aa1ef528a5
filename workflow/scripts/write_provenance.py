"""Write provenance.json, and the page of the report about it."""

from pathlib import Path

from lantern.io import write_json, write_text
from lantern_pipeline.archive.provenance import (
    FILE_PARTS,
    KIND,
    describe_code,
    describe_decoding,
    describe_environment,
    describe_resources,
    hash_files,
    publishable_config,
    render_page,
)
from lantern_pipeline.job.context import job_log
from lantern_pipeline.job.machine import describe_machine

with job_log(snakemake):
    # The rule's parameter `config` has the keys that affect results, so that only they write the file again.
    # The file itself has the whole config.
    files, config = snakemake.input, publishable_config(snakemake.config)
    folder = Path(snakemake.output[0]).parent
    provenance = {
        "kind": KIND,
        "experiment": config["experiment"],
        "code": describe_code(),
        "environment": describe_environment(),
        "machine": describe_machine(),
        "decoding": describe_decoding(files.records),
        "seeds": {"seed": config["seed"], **config["repeats"]},
        **{part: hash_files(files[part], folder) for part in FILE_PARTS},
        "resources": describe_resources(files.resources),
        "config": config,
    }
    write_json(snakemake.output.provenance, provenance)
    write_text(snakemake.output.page, render_page(provenance))
