"""The code that Snakemake's rules run: data, training, metrics, tables and figures. It never imports Snakemake.

docs/glossary.md defines the terms that docstrings use.
"""
