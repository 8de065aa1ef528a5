"""Inputs and intermediate data of a run: prompts, images, codes, caption features and tables."""
