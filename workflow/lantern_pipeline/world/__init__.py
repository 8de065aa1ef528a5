"""The embedded world: captioned procedural images and the models that belong to it."""
