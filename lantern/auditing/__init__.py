"""Audits of samplers: does a sampler have the distribution of its target? See docs/audit.md."""
