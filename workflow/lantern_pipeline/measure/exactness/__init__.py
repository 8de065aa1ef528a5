"""Exactness: how the distribution of emitted tokens differs from that of the target."""
