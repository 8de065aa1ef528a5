"""Inputs and intermediate data of a run: prompts, images, codes, text features and tables."""
