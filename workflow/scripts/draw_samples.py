"""Draws figure (a): one row per prompt, one column per method, all from the same noise."""

from lantern.figures.picture_grid import draw_pictures
from lantern.figures.samples import select_samples
from lantern.figures.style import save_figure
from lantern.io import read_prompts
from lantern.job import job_log
from lantern.models.tokenizer import load_model
from lantern.shards import load_shards

with job_log(snakemake):
    settings = snakemake.params.settings
    prompts = read_prompts(snakemake.input.prompts)
    records = load_shards(snakemake.input.records, [prompt.id for prompt in prompts])
    grid = select_samples(records, prompts, load_model(snakemake.input.tokenizer), settings=settings)
    save_figure(draw_pictures(grid), [snakemake.output.png, snakemake.output.pdf], dpi=settings["dpi"])
