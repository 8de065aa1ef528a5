"""Provenance of results, which states how they were made, and checks of results against it."""
