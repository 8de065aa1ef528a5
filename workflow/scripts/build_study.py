"""Write the HTML page of the preference study, on which readers choose between two images, and its key."""

from lantern.io import write_json, write_text
from lantern_models.checkpoints.image_tokenizers import load_tokenizer
from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.data.record_files import load_shards
from lantern_pipeline.job.context import job_log
from lantern_pipeline.pages.study import build_page, select_trials

with job_log(snakemake) as log:
    settings = snakemake.params.settings
    prompts = read_prompts(snakemake.input.prompts)
    records = load_shards(snakemake.input.records, [prompt.id for prompt in prompts])
    trials, methods = select_trials(records, prompts, load_tokenizer(snakemake.input.tokenizer), settings)
    html, key = build_page(trials, methods, question=settings["question"], seed=settings["seed"])
    # states which image of each pair is the autoregressive one
    write_json(snakemake.output.key, key)
    write_text(snakemake.output.page, html)
    log.info("study %s: %d pairs and checks", key["study"], len(key["trials"]))
