"""Checkpoint files: our own, and published layouts in our names."""
