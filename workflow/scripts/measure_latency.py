"""Measure the time per image of all methods at batch size 1.

Methods take turns image by image, so that a change in the speed of the machine affects all of them.
"""

import pandas as pd
import torch

from lantern_pipeline.data.decoders import load_job_decoders
from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.data.tables import write_table
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.job.context import execution_of, job_log
from lantern_pipeline.measure.speed.latency import measure_latency, save_timed_images
from lantern_pipeline.schema.run_config import Latency, TextSettings

with job_log(snakemake):
    params, files = snakemake.params, snakemake.input
    settings = Latency(**params.settings)
    # `job_log` has set the threads of the rule. Except in variants, these are all cores, so that no other job runs.
    torch.set_num_threads(settings.threads)
    decoders = load_job_decoders(snakemake, params.runs, stepping=execution_of(snakemake).stepping)
    encoder = make_text_encoder(TextSettings(**params.text), params.source, files.text)
    parts, images = [], []
    for name, path in zip(settings.prompt_sets, files.prompts, strict=True):
        frame, drawn = measure_latency(
            decoders,
            read_prompts(path)[: settings.num_images],
            encoder,
            run_seed=int(snakemake.wildcards.noise_seed),
            num_warmup=settings.num_warmup,
            num_rounds=settings.num_rounds,
        )
        parts.append(frame.assign(prompt_set=name, repeat=params.repeat))
        # Pages replay the images at the temperature of the main results.
        images += [image for image in drawn if image.temperature == params.temperature]
    write_table(snakemake.output.table, pd.concat(parts))
    save_timed_images(snakemake.output.images, images)
