"""Run one ablation: generate and measure images at all of its points."""

from lantern.models.stored import read_metadata
from lantern_models.checkpoints.decoding_models import load_decoding_models
from lantern_pipeline.data.decoders import load_tables
from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.data.tables import write_table
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.job.context import execution_of, job_log
from lantern_pipeline.measure.ablations import AblationStudy
from lantern_pipeline.measure.quality.metric_models import load_job_metric_models
from lantern_pipeline.schema.run_config import TextSettings, TotalVariationNodes

with job_log(snakemake):
    params, files = snakemake.params, snakemake.input
    execution = execution_of(snakemake)
    encoder = make_text_encoder(TextSettings(**params.text), params.source, files.text)
    # Training steps -> draft model. None stands for the run's own, or for no draft model if no point needs it.
    drafters = {None: None, **dict(zip(params.drafters, files.drafters, strict=True))}
    study = AblationStudy(
        # None in place of nearest codes: the study sets the table of each point, from `tables`
        models={
            steps: load_decoding_models(
                files.target, drafter, None, execution.device, params.dtype, files.heads or None
            )
            for steps, drafter in drafters.items()
        },
        tables=load_tables(files.nearest_codes, execution.device),
        measuring=load_job_metric_models(snakemake, encoder),
        cross_entropy=(read_metadata(files.target) or {}).get("val_cross_entropy"),  # a published target has none
        prompts=read_prompts(files.prompts)[: params.num_prompts],
        total_variation=TotalVariationNodes(**params.total_variation),
        bootstrap_resamples=params.bootstrap_resamples,
        batch_size=execution.batch_size,
        seed=params.noise_seed,
        stepping=execution.stepping,
    )
    rows, images = study.run(snakemake.wildcards.ablation, params.points)
    write_table(snakemake.output.table, rows)
    write_table(snakemake.output.images, images)
