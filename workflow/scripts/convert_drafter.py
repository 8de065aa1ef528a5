"""Converts a published drafter into our layout, after comparing it with its target."""

from pathlib import Path

from lantern.io import write_json
from lantern.job import job_log
from lantern.models.draft import save_draft
from lantern.models.layouts import own_metadata
from lantern.models.published import read_draft
from lantern.models.target import TargetConfig
from lantern.resources.manifest import resource_path, resource_sha256

with job_log(snakemake) as log:
    path = resource_path(snakemake.input.checkpoint)
    target = TargetConfig(**own_metadata(Path(snakemake.input.target))["config"])
    model = read_draft(path, target)
    report = {
        "checkpoint": path.name,
        "sha256": resource_sha256(snakemake.input.checkpoint),
        "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "norm_eps": model.config.norm_eps,
    }
    save_draft(snakemake.output.model, model, report)
    write_json(snakemake.output.report, report)
    log.info("converted %s: %s", path, report)
