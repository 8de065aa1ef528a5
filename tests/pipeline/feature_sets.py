"""Features of made-up sets of images."""

import torch


def gaussian(n, shift=0.0, seed=0, width=6):
    """Independent normal features (n, width) float32, of standard deviation 1, 2, 3, ..."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, width, generator=generator) * torch.arange(1.0, width + 1) + shift
