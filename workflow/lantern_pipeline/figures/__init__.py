"""Figures of a run, drawn from tables or arrays. There is one module per figure, and modules with shared parts."""
