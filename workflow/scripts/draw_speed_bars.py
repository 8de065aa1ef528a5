"""Draws figure (f): speed-up and mean accepted length of every method, per temperature."""

from lantern_pipeline.data.tables import read_table
from lantern_pipeline.figures.speed_bars import draw_speed_bars
from lantern_pipeline.figures.style import save_figure
from lantern_pipeline.runtime.job import job_log

with job_log(snakemake):
    figure = draw_speed_bars(read_table(snakemake.input.summary), settings=snakemake.params.metrics)
    save_figure(figure, [snakemake.output.png, snakemake.output.pdf], dpi=snakemake.params.settings["dpi"])
