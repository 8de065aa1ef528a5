"""Scores the images of one method on one prompt set at one temperature that differ from the autoregressive ones."""

from pathlib import Path

from lantern.records import load_shards
from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.measure.evaluate_images import save_scores, score_method
from lantern_pipeline.measure.measuring_models import load_measuring_models
from lantern_pipeline.measure.speed import BASELINE
from lantern_pipeline.runtime.job import job_log, resolve_device

with job_log(snakemake):
    params, files, device = snakemake.params, snakemake.input, resolve_device(snakemake.config["device"])
    prompts = read_prompts(files.prompts)
    encoder = make_text_encoder(params.text, params.source, files.text)
    models = load_measuring_models(files.tokenizer, files.target, encoder, dict(files.items()), params.metrics, device)
    records = load_shards(dict.fromkeys([*files.baseline, *files.records]), [prompt.id for prompt in prompts])
    found = score_method(
        records[snakemake.wildcards.method],
        records[BASELINE],
        prompts,
        models,
        snakemake.config["metrics"]["batch_size"],
    )
    save_scores(Path(snakemake.output[0]), found)
