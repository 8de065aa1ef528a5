"""Pydantic models of the configuration, one per config section, with the type and the bounds of every key."""
