"""Training of the models of a run, one file per model: tokenizer, target, draft model, heads and metric models."""
