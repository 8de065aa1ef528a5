"""Lantern: lossless and relaxed speculative decoding for visual autoregressive models."""

__version__ = "0.4.0"
