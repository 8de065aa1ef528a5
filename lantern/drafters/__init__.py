"""Drafters, which propose the drafts of a step. The table of drafters is in `lantern.registry`."""
