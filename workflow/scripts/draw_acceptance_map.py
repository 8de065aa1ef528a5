"""Draws figure (i): where in the image drafts are accepted, of the first method of every speculative preset."""

from lantern.records import load_shards
from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.figures.acceptance_map import draw_acceptance_map
from lantern_pipeline.figures.style import column_titles, first_of_each_preset, save_figure
from lantern_pipeline.metrics.acceptance_map import map_accepted
from lantern_pipeline.metrics.speed import BASELINE
from lantern_pipeline.runtime.job import job_log

with job_log(snakemake):
    prompts = read_prompts(snakemake.input.prompts)
    records = load_shards(snakemake.input.records, [prompt.id for prompt in prompts])
    shown = [records[method_id] for method_id in first_of_each_preset(records) if method_id != BASELINE]
    maps = [map_accepted(found, snakemake.params.grid) for found in shown]
    figure = draw_acceptance_map(maps, column_titles(shown))
    save_figure(figure, [snakemake.output.png, snakemake.output.pdf], dpi=snakemake.params.settings["dpi"])
