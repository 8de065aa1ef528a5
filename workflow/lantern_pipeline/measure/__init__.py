"""Measurements of decoding methods and of the images that they generate, with 95 % intervals."""
