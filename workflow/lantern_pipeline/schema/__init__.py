"""Pydantic models of the configuration, one per config section, with the type and the bounds of every key.

Snakemake imports this package while it plans the jobs, so the package does not import torch.
"""
