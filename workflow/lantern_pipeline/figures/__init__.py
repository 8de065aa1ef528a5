"""Figures, one file each: from a table or arrays to a matplotlib figure."""
