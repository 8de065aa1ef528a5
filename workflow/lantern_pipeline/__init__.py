"""What the rules of the workflow run: data, training, metrics, analysis, figures. Never imports Snakemake."""
