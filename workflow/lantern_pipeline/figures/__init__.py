"""Figures of a run, drawn from tables or arrays. One module per figure; `style` and `image_grid` are shared."""
