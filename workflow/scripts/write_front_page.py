"""Writes the report's first screen from the findings and the images of the methods that they name."""

from lantern.io import read_json, write_text
from lantern.records import load_shards
from lantern_pipeline.analysis.front_page import render_front
from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.runtime.job import job_log
from lantern_pipeline.world.tokenizer import load_tokenizer

with job_log(snakemake):
    files = snakemake.input
    prompts = read_prompts(files.prompts)
    records = load_shards(files.records, [prompt.id for prompt in prompts])
    page = render_front(
        read_json(files.findings)["front"],
        records,
        prompts,
        load_tokenizer(files.tokenizer),
        snakemake.params.num_prompts,
    )
    write_text(snakemake.output.page, page)
