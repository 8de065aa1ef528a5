"""Trains the CLIP model that scores how well an image fits its caption."""

from lantern.data import make_source
from lantern.io import write_json
from lantern.job import job_log, resolve_device, training_checkpoint
from lantern.models.clip import save_clip
from lantern.training.clip import train_clip

with job_log(snakemake), training_checkpoint(snakemake) as checkpoint:
    params = snakemake.params
    source = make_source(params.source["data"], params.seed)
    model, report = train_clip(
        source, params.settings, seed=params.seed, checkpoint=checkpoint, device=resolve_device(params.device)
    )
    save_clip(snakemake.output.model, model, report)
    write_json(snakemake.output.report, report)
