"""Drafters, which propose the drafts of a step. `lantern.registry` lists them by name."""
