"""Convert a target of another run, or a published one, to Lantern's file layout, if it fits the config."""

from dataclasses import replace

import torch

from lantern.io import write_json
from lantern.models.stored import save_model
from lantern.models.target import TargetConfig
from lantern_models.checkpoints.target import read_target
from lantern_models.text.encoders import compare_features
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.fetch.manifest import describe_conversion, resource_path
from lantern_pipeline.job.context import job_log
from lantern_pipeline.schema.run_config import TextSettings

with job_log(snakemake) as log:
    params = snakemake.params
    text = TextSettings(**params.text)
    path = resource_path(snakemake.input.checkpoint)
    sizes = TargetConfig(**params.sizes)
    # Only the tokenizer knows the ids of the null prompt. The converted file states them.
    if snakemake.input.tokenizer:
        sizes = replace(sizes, **make_text_encoder(text, None, snakemake.input.tokenizer).null_prompt)
    model = read_target(path, sizes, getattr(torch, params.dtype), text.encoder)
    report = describe_conversion(snakemake.input.checkpoint, model)
    # A target of another run cannot read prompts whose features differ from those of its training.
    compare_features(path, report, text.encoder)
    save_model(snakemake.output.model, model, report)
    write_json(snakemake.output.report, report)
    log.info("converted %s: %s", path, report)
