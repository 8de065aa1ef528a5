"""Train the CLIP model that measures how well an image fits its caption."""

from lantern.io import write_json
from lantern.models.stored import save_model
from lantern_pipeline.data.image_sources import make_source
from lantern_pipeline.job.context import execution_of, job_log, training_checkpoint
from lantern_pipeline.training.clip import RECIPE, train_clip

with job_log(snakemake), training_checkpoint(snakemake) as checkpoint:
    params = snakemake.params
    source = make_source(params.source["data"], params.seed)
    model, report = train_clip(
        source,
        # config section `clip` sets num_steps only
        RECIPE | params.settings,
        seed=params.seed,
        checkpoint=checkpoint,
        device=execution_of(snakemake).device,
    )
    save_model(snakemake.output.model, model, report)
    write_json(snakemake.output.report, report)
