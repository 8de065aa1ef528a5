"""Trains the draft model against the frozen target, on one process per GPU of the rule."""

from lantern_pipeline.runtime.job import job_log, training_checkpoint
from lantern_pipeline.training.drafter_job import DrafterJob, launch

with job_log(snakemake), training_checkpoint(snakemake) as checkpoint:
    params = snakemake.params
    job = DrafterJob(
        **{name: file if isinstance(file, str) else list(file) for name, file in snakemake.input.items()},
        **{name: params[name] for name in ("settings", "text", "source", "training_seed", "device")},
        # Filters change the logged acceptance, not the training: kept out of params, so that they re-train nothing.
        sampling={**snakemake.config["sampling"], "cfg_scale": params.cfg_scale},
        **dict(snakemake.output.items()),
        checkpoint=str(checkpoint),
    )
    launch(job, max(1, int(snakemake.resources.get("gpu", 0))))
