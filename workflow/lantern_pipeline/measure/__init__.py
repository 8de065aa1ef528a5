"""Metrics, one file each: from records and images to numbers with their uncertainty."""
