"""Checkpoint files in Lantern's layout and in published layouts, whose tensors are renamed."""
