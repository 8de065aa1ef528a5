"""Checks of the config of a run, and everything that follows from it: methods, file paths, and memory of jobs.

Snakemake imports this package while it plans the jobs, so the package does not import torch.
"""
