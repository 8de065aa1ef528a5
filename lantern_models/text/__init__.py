"""Text encoders, which turn a prompt into the target's input: features, or ids of tokens or of a class."""
