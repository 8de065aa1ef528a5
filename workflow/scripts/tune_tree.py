"""Times the trees that methods with a tuned tree may take, and writes the fastest of each."""

import torch

from lantern.io import write_json
from lantern_pipeline.data.decoders import load_job_decoders, tuned_name
from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.measure.tree_tuning import choose_tree
from lantern_pipeline.runtime.job import job_log

with job_log(snakemake) as log:
    params, files = snakemake.params, snakemake.input
    torch.set_num_threads(params.timed_threads)
    prompts, encoder = read_prompts(files.prompts[0]), make_text_encoder(params.text, params.source, files.text)
    found = {}
    for method_id, temperature, candidates in params.runs:
        decoders = load_job_decoders(
            snakemake,
            [(candidate, temperature) for candidate in candidates],
            stepping=snakemake.config["generation"]["stepping"],
        )
        name = tuned_name(method_id, temperature)
        found[name] = choose_tree(decoders, prompts, encoder, run_seed=params.training_seed)
        log.info("%s: %s", name, found[name]["tree"])
    write_json(snakemake.output[0], {"num_prompts": len(prompts), "methods": found})
