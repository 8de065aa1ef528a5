"""Times all methods at batch 1, interleaved image by image, alone on the machine."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch

from lantern.assembly import make_text_encoder
from lantern.decoding import Decoder
from lantern.generation import load_decoding_models, load_nearest_codes, make_tree
from lantern.io import read_prompts, write_table
from lantern.job import job_log, resolve_device
from lantern.latency import measure_latency
from lantern.methods import MethodSpec
from lantern.sampling import SamplingConfig

with job_log(snakemake):
    params, files, settings = snakemake.params, snakemake.input, snakemake.params.settings
    torch.set_num_threads(settings["threads"])
    device = resolve_device(params.device)
    shared = load_decoding_models(files.target, files.drafter, device=device)
    tables = {Path(path).stem: load_nearest_codes(path, device) for path in files.nearest_codes}
    encoder, decoders, parts = make_text_encoder(params.text, params.source, params.seed), [], []
    for method, tree, temperature in params.runs:
        spec = MethodSpec(**method)
        models = replace(shared, nearest_codes=tables.get(spec.neighbours))
        sampling = SamplingConfig(temperature=temperature, **params.sampling)
        decoders.append(Decoder(models, spec, sampling, make_tree(spec, tree)))
    for name, path in zip(settings["prompt_sets"], files.prompts, strict=True):
        prompts = read_prompts(path)[: settings["num_images"]]
        frame = measure_latency(decoders, prompts, encoder, run_seed=params.seed, num_warmup=settings["num_warmup"])
        parts.append(frame.assign(prompt_set=name))
    write_table(snakemake.output[0], pd.concat(parts))
