"""Draws figure (c): histograms of the target's top-1 and top-10 probability."""

from lantern_pipeline.data.tables import read_table
from lantern_pipeline.figures.ambiguity import draw_ambiguity
from lantern_pipeline.figures.style import save_figure
from lantern_pipeline.runtime.job import job_log

with job_log(snakemake):
    figure = draw_ambiguity(read_table(snakemake.input.ambiguity))
    save_figure(figure, [snakemake.output.png, snakemake.output.pdf], dpi=snakemake.params.settings["dpi"])
