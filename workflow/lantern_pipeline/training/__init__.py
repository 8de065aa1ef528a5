"""Training of every model of the shapes dataset, one file per model."""
