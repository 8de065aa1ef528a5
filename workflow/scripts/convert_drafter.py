"""Convert a draft model of another run, or a published one, to Lantern's file layout, if it fits the target."""

import torch

from lantern.io import write_json
from lantern.models.config import TargetConfig, pick
from lantern.models.stored import read_metadata, save_model
from lantern_models.checkpoints.drafter import find_embedding, read_draft
from lantern_pipeline.fetch.manifest import describe_conversion, resource_path
from lantern_pipeline.job.context import job_log

with job_log(snakemake) as log:
    params, files, path = snakemake.params, snakemake.input, resource_path(snakemake.input.checkpoint)
    # The header has the sizes, so the large target itself is not loaded.
    target = pick(TargetConfig, read_metadata(files.target)["config"])
    model = read_draft(path, target, getattr(torch, params.dtype))
    report = describe_conversion(files.checkpoint, model)
    # A published draft model has a copy of a matrix of its own target, which shows whether the two belong together.
    embedding = find_embedding(model, files.target)
    if embedding is None and "val_loss" not in report:  # Lantern's training changes the embedding
        log.warning(
            "%s: its embed_tokens.weight is neither the token embedding nor the head of the target %s; a drafter of "
            "another target makes no wrong images, but few of its tokens are accepted",
            path,
            files.target,
        )
    report |= {"embedding_copied_from": embedding}
    save_model(snakemake.output.model, model, report)
    write_json(snakemake.output.report, report)
    log.info("converted %s: %s", path, report)
