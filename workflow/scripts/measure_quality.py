"""Write the quality table of one prompt set and temperature, from the scores of all methods' images.

Metrics of whole sets of images, such as FID, are computed here.
"""

from lantern_pipeline.data.image_sources import make_source
from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.data.record_files import load_shards
from lantern_pipeline.data.tables import write_table
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.job.context import job_log
from lantern_pipeline.measure.quality.evaluate_images import load_scores
from lantern_pipeline.measure.quality.metric_models import load_job_metric_models
from lantern_pipeline.measure.quality.quality_tables import measure_quality
from lantern_pipeline.schema.run_config import FidelitySettings, TextSettings

with job_log(snakemake):
    params, files = snakemake.params, snakemake.input
    prompts = read_prompts(files.prompts)
    encoder = make_text_encoder(TextSettings(**params.text), params.source["data"]["source"], files.text)
    models = load_job_metric_models(snakemake, encoder)
    rows, images = measure_quality(
        load_shards(files.records, [prompt.id for prompt in prompts]),
        {name: found for path in files.scores for name, found in load_scores(path).items()},
        prompts,
        make_source(params.source["data"], params.seed),  # None without held-out images to compare with
        models,
        settings=FidelitySettings(**params.fidelity),
        prompt_set=snakemake.wildcards.prompt_set,
        split=params.split,
        repeat=params.repeat,
        seed=params.seed,
    )
    write_table(snakemake.output.table, rows)
    write_table(snakemake.output.images, images)
