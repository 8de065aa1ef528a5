"""Figures, one file each: a table or arrays in, a matplotlib figure out."""
