"""Figures of a run. Each module draws one figure, and takes a table or arrays as input."""
