"""Brings a target model of another run, or a published one, into our layout, after comparing it with the config."""

import torch

from lantern.checkpoints.native import save_model
from lantern.checkpoints.target import read_target
from lantern.io import write_json
from lantern.models.config import FFN_MULTIPLE, pick
from lantern.models.target import TargetConfig
from lantern_pipeline.data.model_sizes import prompt_sizes, resolve_size
from lantern_pipeline.data.text_encoders import compare_features, make_text_encoder
from lantern_pipeline.fetch.manifest import describe_conversion, resource_path
from lantern_pipeline.runtime.job import job_log

with job_log(snakemake) as log:
    params = snakemake.params
    path = resource_path(snakemake.input.checkpoint)
    settings = {"ffn_multiple": FFN_MULTIPLE, **resolve_size(params.settings), **params.codes}
    prompt = prompt_sizes(params.text)
    if snakemake.input.tokenizer:
        prompt |= make_text_encoder(params.text, None, snakemake.input.tokenizer).null_prompt
    sizes, dtype = pick(TargetConfig, settings, **prompt), getattr(torch, params.dtype)
    model = read_target(path, sizes, dtype, params.text["encoder"])
    report = describe_conversion(snakemake.input.checkpoint, model)
    compare_features(path, report, params.text)
    save_model(snakemake.output.model, model, report)
    write_json(snakemake.output.report, report)
    log.info("converted %s: %s", path, report)
