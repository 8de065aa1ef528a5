"""Audits of samplers, which test whether the samples have the distribution of the target, see docs/audit.md."""
