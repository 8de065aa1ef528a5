"""Provenance of results: what made them, a check of their files, and a check that images can be generated again."""
