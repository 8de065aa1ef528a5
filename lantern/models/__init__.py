"""The target, the draft model, and Lantern's files of models."""
