"""Draws figure (m): where images part from the autoregressive ones, and what that costs from there on."""

from lantern_pipeline.data.tables import read_table
from lantern_pipeline.figures.divergence import draw_divergence
from lantern_pipeline.figures.style import save_figure
from lantern_pipeline.runtime.job import job_log

with job_log(snakemake):
    tables = [read_table(path) for path in (snakemake.input.divergence, snakemake.input.summary)]
    figure = draw_divergence(*tables, settings=snakemake.params.metrics)
    save_figure(figure, [snakemake.output.png, snakemake.output.pdf], dpi=snakemake.params.settings["dpi"])
