"""Measures total variation from the target, per method and per rule, and what aggregation does to acceptance."""

import pandas as pd

from lantern.checkpoints.native import load_model
from lantern.generation import load_nearest_codes
from lantern.models.target import TargetModel
from lantern.records import load_shards
from lantern_pipeline.analysis.total_variation import TotalVariationStudy
from lantern_pipeline.data.decoders import load_decoders
from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.data.tables import write_table
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.metrics.speed import BASELINE
from lantern_pipeline.runtime.job import job_log, resolve_device
from lantern_pipeline.world.tokenizer import load_tokenizer

with job_log(snakemake):
    params, files, device = snakemake.params, snakemake.input, resolve_device(snakemake.params.device)
    prompts = read_prompts(files.prompts)
    records = load_shards(files.records, [prompt.id for prompt in prompts])
    study = TotalVariationStudy(
        target_model=load_model(files.target, TargetModel, dtype=None).to(device),
        encoder=make_text_encoder(params.text, params.source, files.text),
        prompts=prompts[: params.settings["num_images"]],
        tested_prompts=prompts[: params.settings["num_tested"]],
        settings=params.settings,
        num_resamples=params.metrics["bootstrap_resamples"],
        seed=params.noise_seed,
        batch_size=records[BASELINE].metadata["batch_size"],  # what fitted into memory there fits here
    )
    decoders = load_decoders(
        params.runs,
        params.sampling,
        target=files.target,
        drafter=files.drafter or None,
        nearest_codes=files.nearest_codes,
        device=device,
        dtype=params.dtype,
        trees=files.get("trees") or None,
    )
    codebook = load_tokenizer(files.tokenizer).decoded_codebook.detach()
    write_table(snakemake.output.methods, study.measure_methods(decoders, records, codebook).assign(**params.place))
    tables = {"nearest": load_nearest_codes(files.nearest, device), "random": load_nearest_codes(files.random, device)}
    named = {params.neighbours: tables["nearest"], "random": tables["random"]}
    nodes = study.common_nodes(decoders[0]) if files.drafter else None
    curves = pd.DataFrame(columns=["rule", "delta"]) if nodes is None else study.compare_rules(nodes, tables["nearest"])
    acceptance = pd.DataFrame(columns=["drafts"]) if nodes is None else study.aggregate(nodes, named)
    write_table(snakemake.output.curves, curves)
    write_table(snakemake.output.acceptance, acceptance)
