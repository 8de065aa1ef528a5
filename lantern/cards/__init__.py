"""Model cards: what describes a model, and the published models."""
