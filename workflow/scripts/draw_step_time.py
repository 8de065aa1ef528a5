"""Draws figure (j): where a decoding step's time goes."""

from lantern_pipeline.data.tables import read_table
from lantern_pipeline.figures.step_time import draw_step_time
from lantern_pipeline.figures.style import save_figure
from lantern_pipeline.runtime.job import job_log

with job_log(snakemake):
    tables = [read_table(path) for path in (snakemake.input.steps, snakemake.input.summary)]
    figure = draw_step_time(*tables, settings=snakemake.params.metrics)
    save_figure(figure, [snakemake.output.png, snakemake.output.pdf], dpi=snakemake.params.settings["dpi"])
