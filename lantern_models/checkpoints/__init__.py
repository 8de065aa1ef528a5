"""Readers of weight files, in Lantern's layout or in a published one, whose tensors are renamed."""
