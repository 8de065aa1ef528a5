"""Text encoders: prompts to the features or ids that a target reads."""
