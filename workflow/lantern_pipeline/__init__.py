"""The code that the workflow's rules run: data, training, metrics, analysis, figures. It never imports Snakemake."""
