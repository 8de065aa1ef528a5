"""Functions that read and write checkpoint files.

These files have either Lantern's layout or a published one. Tensors of published files are renamed.
"""
