"""Random weights that replace the published weights of metric models in tests.

Inception has its full size. The other models are narrow.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
import torchvision
from PIL import Image
from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

TINY_CLIP = {
    "embed_dim": 16,
    "quick_gelu": True,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2},
}


class Unloaded(FeatureExtractorInceptionV3):
    """torch-fidelity's Inception that skips loading, and so keeps its random initial weights."""

    def load_state_dict(self, *arguments, **options):
        return None


def inception_weights() -> dict[str, torch.Tensor]:
    """Return random weights of Inception, 91 MiB."""
    torch.manual_seed(0)
    nothing = io.BytesIO()
    torch.save({}, nothing)
    nothing.seek(0)
    return Unloaded("inception-v3-compat", ["64"], feature_extractor_weights_path=nothing).state_dict()


def narrow_vgg16(**options) -> torch.nn.Module:
    """Return a VGG16 of torchvision's class with at most 8 channels instead of 512, and 16 features instead of 4096."""
    features = torchvision.models.vgg.make_layers([4, "M", 4, "M", 8, "M", 8, "M", 8, "M"])
    # The class always makes its full-size layers of 120 million weights. On the meta device they take no memory.
    with torch.device("meta"):
        model = torchvision.models.VGG(torch.nn.Identity(), init_weights=False)
    model.features, model.avgpool = features, torch.nn.AdaptiveAvgPool2d((7, 7))
    for index, sizes in {0: (8 * 7 * 7, 16), 3: (16, 16), 6: (16, 10)}.items():
        model.classifier[index] = torch.nn.Linear(*sizes)
    return model


def vgg16_weights() -> dict[str, torch.Tensor]:
    """Return random weights of the narrow VGG16."""
    torch.manual_seed(1)
    return narrow_vgg16().state_dict()


def tiny_clip(seed: int = 2) -> torch.nn.Module:
    """Return an open_clip model with the sizes of TINY_CLIP and random weights."""
    from open_clip.model import CLIP

    torch.manual_seed(seed)
    return CLIP(**TINY_CLIP).eval()


def write_pictures(
    folder: Path, num: int, seed: int, sizes: tuple[tuple[int, int], ...] = ((40, 40),), brightest: int = 255
) -> Path:
    """Write PNG files of blurred noise, and return their folder.

    Args:
        folder: a folder that does not exist yet.
        num: number of files.
        seed: random seed.
        sizes: (width, height) in pixels; the files take them in turn.
        brightest: largest pixel value.
    """
    folder.mkdir(parents=True)
    generator = np.random.default_rng(seed)
    for i in range(num):
        values = generator.integers(0, brightest, (6, 6, 3), dtype=np.uint8, endpoint=True)
        Image.fromarray(values).resize(sizes[i % len(sizes)]).save(folder / f"{i:03d}.png")
    return folder
