"""Draws figure (g): nearest, random and other neighbours, NLL change against accepted length."""

from lantern_pipeline.data.tables import read_table
from lantern_pipeline.figures.neighbours import draw_neighbours
from lantern_pipeline.figures.style import save_figure
from lantern_pipeline.runtime.job import job_log

with job_log(snakemake):
    figure = draw_neighbours(read_table(snakemake.input.table))
    save_figure(figure, [snakemake.output.png, snakemake.output.pdf], dpi=snakemake.params.settings["dpi"])
