"""Published models: their cards, weights, text encoders and image tokenizers."""
