"""Converts a published drafter into our layout, after comparing it with its target."""

from pathlib import Path

from lantern.checkpoints.draft_embedding import find_embedding
from lantern.checkpoints.layouts import own_metadata
from lantern.checkpoints.llamagen import describe_conversion, read_draft
from lantern.io import write_json
from lantern.models.draft import save_draft
from lantern.models.target import TargetConfig
from lantern_pipeline.downloads.manifest import resource_path
from lantern_pipeline.runtime.job import job_log

with job_log(snakemake) as log:
    path = resource_path(snakemake.input.checkpoint)
    target = TargetConfig(**own_metadata(Path(snakemake.input.target))["config"])
    model = read_draft(path, target)
    embedding = find_embedding(model, snakemake.input.target)
    if embedding is None:
        log.warning(
            "%s: its embed_tokens.weight is neither the token embedding nor the head of the target %s; a drafter of "
            "another target makes no wrong images, but few of its tokens are accepted",
            path,
            snakemake.input.target,
        )
    report = {**describe_conversion(snakemake.input.checkpoint, model), "embedding_copied_from": embedding}
    save_draft(snakemake.output.model, model, report)
    write_json(snakemake.output.report, report)
    log.info("converted %s: %s", path, report)
