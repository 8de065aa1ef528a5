"""The code of the workflow's rules: data, training, metrics, analysis, figures. Never imports Snakemake."""
