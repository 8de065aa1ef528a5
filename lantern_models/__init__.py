"""Published and shipped models: cards, weights, text encoders, image tokenizers, and targets made of transformers."""
