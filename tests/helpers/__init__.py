"""Helpers that several test files share: tiny models and data, made-up tables, servers and runs of the workflow."""
