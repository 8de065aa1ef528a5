"""Chooses the prompts on which trees are tuned: none is in a prompt set that tables report."""

from lantern_pipeline.data.prompt_files import load_prompt_set, read_prompts, write_prompts
from lantern_pipeline.fetch.manifest import resource_path
from lantern_pipeline.measure.tree_tuning import unreported_prompts
from lantern_pipeline.runtime.job import job_log

with job_log(snakemake) as log:
    params, files = snakemake.params, snakemake.input
    if files.file:
        candidates = load_prompt_set(resource_path(files.file), {**params.entry, "num": None}, params.seed)
    else:
        candidates = [*read_prompts(files.captions[1]), *read_prompts(files.captions[0])]  # held-out ones first
    reported = [prompt for path in files.reported for prompt in read_prompts(path)]
    prompts = unreported_prompts(candidates, reported, params.num)
    write_prompts(snakemake.output[0], prompts)
    log.info("chose %d prompts of %d", len(prompts), len(candidates))
