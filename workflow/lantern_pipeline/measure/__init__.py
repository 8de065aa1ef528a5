"""Metrics, one file each. They turn records and images into numbers with their uncertainty."""
