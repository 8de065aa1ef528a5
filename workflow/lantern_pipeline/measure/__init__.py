"""Metrics, one file each: records and images in, numbers with their uncertainty out."""
