"""Draws figure (k): autoregressive, exact and relaxed images of the same noise, and what differs."""

from lantern.records import load_shards
from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.figures.image_grid import draw_pictures
from lantern_pipeline.figures.pairs import select_pairs
from lantern_pipeline.figures.style import save_figure
from lantern_pipeline.runtime.job import job_log
from lantern_pipeline.world.tokenizer import load_tokenizer

with job_log(snakemake):
    settings = snakemake.params.settings
    prompts = read_prompts(snakemake.input.prompts)
    records = load_shards(snakemake.input.records, [prompt.id for prompt in prompts])
    grid = select_pairs(records, prompts, load_tokenizer(snakemake.input.tokenizer), settings=settings)
    save_figure(draw_pictures(grid), [snakemake.output.png, snakemake.output.pdf], dpi=settings["dpi"])
