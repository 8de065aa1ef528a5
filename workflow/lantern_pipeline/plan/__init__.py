"""Checks of the config of a run, and everything that follows from it: methods, file paths, and memory of jobs.

Snakemake imports this package while it plans the jobs, and every job imports it again. Only functions that jobs rarely
call therefore import torch, pandas or matplotlib.
"""
