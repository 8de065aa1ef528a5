"""Models: target transformer, draft model, image tokenizer, text encoders and their checkpoint layouts."""
