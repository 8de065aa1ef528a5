"""Worlds: datasets whose captions name attributes of the images, and the models that check these attributes.

The worlds are the shapes dataset (procedural images) and Fashion-MNIST. The models are an attribute classifier and
CLIP.
"""
