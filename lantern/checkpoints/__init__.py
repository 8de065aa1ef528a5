"""Reading and writing of checkpoint files.

They have either Lantern's layout or a published one. Tensors of published files are renamed.
"""
