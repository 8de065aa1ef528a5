"""Provenance of results: a description of how they were made.

The package also checks the files of results, and generates some of their images again to compare the codes.
"""
