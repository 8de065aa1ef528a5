"""The config: checked, and expanded into methods, paths and sizes of jobs. Read while Snakemake plans: no torch."""
