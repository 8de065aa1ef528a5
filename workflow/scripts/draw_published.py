"""Draws figure (l): published numbers beside this run's."""

from lantern_pipeline.data.tables import read_table
from lantern_pipeline.figures.published import draw_published
from lantern_pipeline.figures.style import save_figure
from lantern_pipeline.runtime.job import job_log

with job_log(snakemake):
    tables = [read_table(path) for path in (snakemake.input.published, snakemake.input.summary)]
    figure = draw_published(*tables, settings=snakemake.params.metrics)
    save_figure(figure, [snakemake.output.png, snakemake.output.pdf], dpi=snakemake.params.settings["dpi"])
