"""Models: target, draft model, image tokenizers, and adapters for transformers models."""
