"""Provenance of results: a description of how they were made, and checks of results against it.

A check compares the files with their checksums. It also generates some of the images again and compares their codes
with the stored ones.
"""
