"""The shapes dataset: captioned procedural images, and the models that belong to it."""
