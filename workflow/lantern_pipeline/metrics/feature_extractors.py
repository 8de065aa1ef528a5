"""Published feature extractors: torch-fidelity's Inception (FID, KID) and VGG16 (precision, recall), from local files.

torch-fidelity would fetch missing weights by itself and unpickle a file with whatever code it holds; here the weights
are read first, without code, and handed over.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch_fidelity.registry import FEATURE_EXTRACTORS_REGISTRY

from lantern_pipeline.metrics.published_weights import load_published

INCEPTION, VGG16 = "inception-v3-compat", "vgg16"
INCEPTION_LAYER = "2048"
VGG16_LAYERS = ("fc2_relu", "fc2")  # torch-fidelity's; before the last rectifier, as the LANTERN authors' code has it


@dataclass(frozen=True)
class Extractor:
    """An extractor with its weights.

    Attributes:
        name: "<torch-fidelity's name>/<layer>".
        sha256: of its weights.
        module: uint8 images (n, 3, height, width) -> ((n, width) float32,).
    """

    name: str
    sha256: str
    module: nn.Module

    @torch.inference_mode()
    def extract(self, pixels: Tensor) -> Tensor:
        """Extracts features of uint8 images (n, 3, height, width): (n, width) float32, on the CPU.

        Convolutions keep the full float32 on a GPU: TensorFloat-32 would move FID.
        """
        device = next(self.module.parameters()).device
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            return self.module(pixels.to(device))[0].float().cpu()


def load_inception(path: Path | str, device: torch.device | str = "cpu", layer: str = INCEPTION_LAYER) -> Extractor:
    """Loads the Inception of torch-fidelity (the 2015 TensorFlow graph).

    Args:
        path: its weights, e.g. weights-inception-2015-12-05-6726825d.pth.
        device: where to extract.
        layer: "2048" for FID and KID as published.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file holds other weights, or code.
    """
    return load_extractor(INCEPTION, layer, path, device)


def load_vgg16(path: Path | str, device: torch.device | str = "cpu", layer: str = VGG16_LAYERS[0]) -> Extractor:
    """Loads the VGG16 of torch-fidelity (torchvision's).

    Args:
        path: its weights, e.g. vgg16-397923af.pth.
        device: where to extract.
        layer: one of VGG16_LAYERS; precision and recall differ between them.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file holds other weights, or code.
    """
    return load_extractor(VGG16, layer, path, device)


def load_extractor(name: str, layer: str, path: Path | str, device: torch.device | str = "cpu") -> Extractor:
    """Loads an extractor that torch-fidelity knows.

    Args:
        name: torch-fidelity's name of it.
        layer: one of the extractor's.
        path: file of weights, pickle or safetensors, or the manifest of a resource.
        device: where to extract.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the extractor has no such layer, or the file holds other weights, or code.
    """
    kind = FEATURE_EXTRACTORS_REGISTRY[name]
    layers = kind.get_provided_features_list()
    if layer not in layers:
        raise ValueError(f"the extractor {name} has no layer {layer!r}; it has {', '.join(layers)}")
    weights, buffer = load_published(path), io.BytesIO()
    torch.save(weights.tensors, buffer)
    buffer.seek(0)
    try:
        module = kind(name, [layer], feature_extractor_weights_path=buffer)
    except RuntimeError as error:
        lines = str(error).strip().splitlines()
        reason = (lines[1] if len(lines) > 1 else lines[0]).strip()
        raise ValueError(f"{weights.path} does not hold the weights of {name}: {reason[:200]}") from error
    return Extractor(f"{name}/{layer}", weights.sha256, module.eval().requires_grad_(False).to(device))
