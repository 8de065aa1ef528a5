"""Writes the report's first screen from the claims and the images of the methods that they name."""

from lantern.checkpoints.tokenizers import load_tokenizer
from lantern.io import read_json, write_text
from lantern.records import load_shards
from lantern_pipeline.data.image_files import decode_images, to_pixels
from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.pages.front_page import describe_front, render_front
from lantern_pipeline.runtime.job import job_log

with job_log(snakemake):
    files, num = snakemake.input, snakemake.params.num_prompts
    front, prompts, tokenizer = (
        describe_front(read_json(files.claims)),
        read_prompts(files.prompts),
        load_tokenizer(files.tokenizer),
    )
    records = load_shards(files.records, [prompt.id for prompt in prompts])
    pictures = {name: to_pixels(decode_images(tokenizer, records[name].codes[:num])) for name in front["methods"]}
    write_text(snakemake.output.page, render_front(front, pictures, [prompt.text for prompt in prompts[:num]]))
