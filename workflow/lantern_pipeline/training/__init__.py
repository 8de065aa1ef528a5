"""Training loops of every model that the embedded world needs; one file a model."""
