"""Audits of samplers. An audit tests whether the samples have the distribution of the target, see docs/audit.md."""
