"""Times all methods at batch 1, interleaved image by image, alone on the machine; keeps the headline's images."""

import pandas as pd
import torch

from lantern_pipeline.data.decoders import load_job_decoders
from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.data.tables import write_table
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.measure.latency import measure_latency, save_timed_images
from lantern_pipeline.runtime.job import job_log

with job_log(snakemake):
    params, files, settings = snakemake.params, snakemake.input, snakemake.params.settings
    torch.set_num_threads(settings["threads"])
    decoders = load_job_decoders(snakemake, params.runs, stepping=snakemake.config["generation"]["stepping"])
    encoder = make_text_encoder(params.text, params.source, files.text)
    parts, images = [], []
    for name, path in zip(settings["prompt_sets"], files.prompts, strict=True):
        prompts = read_prompts(path)[: settings["num_images"]]
        options = {name: settings[name] for name in ("num_warmup", "num_rounds")}
        frame, drawn = measure_latency(
            decoders, prompts, encoder, run_seed=int(snakemake.wildcards.noise_seed), **options
        )
        parts.append(frame.assign(prompt_set=name, repeat=params.repeat))
        images += [image for image in drawn if image.temperature == params.temperature]
    write_table(snakemake.output.table, pd.concat(parts))
    save_timed_images(snakemake.output.images, images)
