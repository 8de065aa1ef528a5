"""Checks of the config, and its expansion into methods, paths and resources of jobs.

Snakemake reads this package while it plans, so it does not import torch.
"""
