"""Takes a decoding step apart: how long do drafting, the target, scoring, verifying and committing take?"""

import torch

from lantern_pipeline.data.decoders import load_job_decoders
from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.data.tables import write_table
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.measure.latency import profile_steps
from lantern_pipeline.runtime.job import job_log

with job_log(snakemake):
    params, files, settings = snakemake.params, snakemake.input, snakemake.params.settings
    torch.set_num_threads(settings["threads"])
    decoders = load_job_decoders(snakemake, params.runs)
    encoder = make_text_encoder(params.text, params.source, files.text)
    prompts = read_prompts(files.prompts[0])[: settings["num_profiled"]]
    write_table(snakemake.output[0], profile_steps(decoders, prompts, encoder, run_seed=params.noise_seed))
