"""Functions that read and write checkpoint files, in Lantern's layout or a published one, whose tensors are renamed."""
