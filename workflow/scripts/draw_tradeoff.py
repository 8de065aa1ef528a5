"""Draws figure (b): speed against quality, one curve per method over its grid."""

from lantern_pipeline.data.tables import read_table
from lantern_pipeline.figures.style import save_figure
from lantern_pipeline.figures.tradeoff import draw_tradeoff
from lantern_pipeline.runtime.job import job_log

with job_log(snakemake):
    figure = draw_tradeoff(read_table(snakemake.input.summary), settings=snakemake.params.metrics)
    save_figure(figure, [snakemake.output.png, snakemake.output.pdf], dpi=snakemake.params.settings["dpi"])
