"""Converts a published drafter into our layout, after comparing it with its target."""

from pathlib import Path

from lantern.io import write_json
from lantern.job import job_log
from lantern.models.draft import save_draft
from lantern.models.layouts import own_metadata
from lantern.models.published import describe_conversion, read_draft
from lantern.models.target import TargetConfig
from lantern.resources.manifest import resource_path

with job_log(snakemake) as log:
    path = resource_path(snakemake.input.checkpoint)
    target = TargetConfig(**own_metadata(Path(snakemake.input.target))["config"])
    model = read_draft(path, target)
    report = describe_conversion(snakemake.input.checkpoint, model)
    save_draft(snakemake.output.model, model, report)
    write_json(snakemake.output.report, report)
    log.info("converted %s: %s", path, report)
