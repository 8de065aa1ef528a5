"""Draws figure (n): every ablation in a panel of its own."""

import pandas as pd

from lantern_pipeline.data.tables import read_table
from lantern_pipeline.figures.ablations import draw_ablations
from lantern_pipeline.figures.style import save_figure
from lantern_pipeline.runtime.job import job_log

with job_log(snakemake):
    figure = draw_ablations(pd.concat([read_table(path) for path in snakemake.input.tables], ignore_index=True))
    save_figure(figure, [snakemake.output.png, snakemake.output.pdf], dpi=snakemake.params.settings["dpi"])
