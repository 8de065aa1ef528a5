"""Lantern: lossless and relaxed speculative decoding for visual autoregressive models."""

__version__ = "0.5.0"
