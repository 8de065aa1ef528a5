"""Draws figure (e): images with every token replaced by its n-th nearest code, or by a random one."""

from lantern.generation import load_nearest_codes
from lantern.records import load_shards
from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.figures.image_grid import draw_pictures
from lantern_pipeline.figures.latent_proximity import select_proximity
from lantern_pipeline.figures.style import save_figure
from lantern_pipeline.metrics.speed import BASELINE
from lantern_pipeline.runtime.job import job_log
from lantern_pipeline.world.tokenizer import load_tokenizer

with job_log(snakemake):
    settings, seed = snakemake.params.settings, snakemake.params.seed
    prompts = read_prompts(snakemake.input.prompts)
    codes = load_shards(snakemake.input.records, [prompt.id for prompt in prompts])[BASELINE].codes
    models = load_tokenizer(snakemake.input.tokenizer), load_nearest_codes(snakemake.input.nearest)
    grid = select_proximity(codes, prompts, *models, num_rows=settings["proximity_prompts"], seed=seed)
    save_figure(draw_pictures(grid), [snakemake.output.png, snakemake.output.pdf], dpi=settings["dpi"])
