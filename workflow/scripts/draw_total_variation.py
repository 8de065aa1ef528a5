"""Draws figure (h): total variation from the target against the bound delta."""

from lantern_pipeline.data.tables import read_table
from lantern_pipeline.figures.style import save_figure
from lantern_pipeline.figures.total_variation import draw_total_variation
from lantern_pipeline.runtime.job import job_log

with job_log(snakemake):
    tables = [read_table(path) for path in (snakemake.input.curves, snakemake.input.law, snakemake.input.summary)]
    figure = draw_total_variation(*tables, settings=snakemake.params.metrics)
    save_figure(figure, [snakemake.output.png, snakemake.output.pdf], dpi=snakemake.params.settings["dpi"])
