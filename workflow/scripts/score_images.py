"""Measure the images of one method, prompt set and temperature with the metrics of single images.

An image is left out if its codes equal those of the autoregressive image, because both have the same scores.
"""

from pathlib import Path

from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.data.record_files import load_shards
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.job.context import job_log
from lantern_pipeline.measure.quality.evaluate_images import save_scores, score_method
from lantern_pipeline.measure.quality.metric_models import load_job_metric_models
from lantern_pipeline.measure.speed.speedups import BASELINE
from lantern_pipeline.schema.run_config import TextSettings

with job_log(snakemake):
    params, files = snakemake.params, snakemake.input
    prompts = read_prompts(files.prompts)
    encoder = make_text_encoder(TextSettings(**params.text), params.source, files.text)
    models = load_job_metric_models(snakemake, encoder)
    # autoregressive decoding is its own baseline: its files must not be read twice
    records = load_shards(dict.fromkeys([*files.baseline, *files.records]), [prompt.id for prompt in prompts])
    found = score_method(records[snakemake.wildcards.method], records[BASELINE], prompts, models)
    save_scores(Path(snakemake.output[0]), found)
