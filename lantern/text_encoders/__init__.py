"""Text encoders, which turn prompts into the features or ids that a target reads."""
