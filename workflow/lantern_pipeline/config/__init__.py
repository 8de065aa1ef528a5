"""The config: checks, and its expansion into methods, paths and job sizes.

Snakemake reads this package while it plans, so it does not import torch.
"""
