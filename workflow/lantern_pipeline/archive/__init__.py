"""Provenance of results: a description of how they were made.

The package also checks the files of results. It generates some of their images again and compares the codes with the
stored ones.
"""
