"""Provenance of results, the check of their files, and images generated again."""
