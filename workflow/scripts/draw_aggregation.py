"""Draws figure (d): acceptance before and after aggregating the k nearest codes, against k."""

from lantern_pipeline.data.tables import read_table
from lantern_pipeline.figures.aggregation import draw_aggregation
from lantern_pipeline.figures.style import save_figure
from lantern_pipeline.runtime.job import job_log

with job_log(snakemake):
    figure = draw_aggregation(read_table(snakemake.input.acceptance))
    save_figure(figure, [snakemake.output.png, snakemake.output.pdf], dpi=snakemake.params.settings["dpi"])
