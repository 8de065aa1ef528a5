"""Trains the draft model against the frozen target, on one process per GPU of the rule."""

from lantern_pipeline.runtime.job import job_log, training_checkpoint
from lantern_pipeline.training.drafter_job import DrafterJob, launch

with job_log(snakemake), training_checkpoint(snakemake) as checkpoint:
    files, params, outputs = snakemake.input, snakemake.params, snakemake.output
    job = DrafterJob(
        target=str(files.target),
        codes=list(files.train),
        captions=str(files.captions),
        features=list(files.text),
        val_codes=list(files.val),
        val_captions=str(files.val_captions),
        val_features=list(files.val_text),
        settings=params.settings,
        # Filters change the logged acceptance, not the training: kept out of params, so that they re-train nothing.
        sampling={**snakemake.config["sampling"], "cfg_scale": params.cfg_scale},
        text=params.text,
        data_source=params.source,
        seed=params.seed,
        training_seed=params.training_seed,
        device=params.device,
        model=str(outputs.model),
        report=str(outputs.report),
        checkpoint=str(checkpoint),
    )
    launch(job, max(1, int(snakemake.resources.get("gpu", 0))))
