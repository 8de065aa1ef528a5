"""Draws figure (l): published numbers beside this run's."""

from lantern.figures.published import draw_published
from lantern.figures.style import save_figure
from lantern.io import read_table
from lantern.job import job_log

with job_log(snakemake):
    tables = [read_table(path) for path in (snakemake.input.published, snakemake.input.summary)]
    figure = draw_published(*tables, settings=snakemake.params.metrics)
    save_figure(figure, [snakemake.output.png, snakemake.output.pdf], dpi=snakemake.params.settings["dpi"])
