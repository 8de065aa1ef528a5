"""Networks whose features are compared by FID and similar metrics: Inception, VGG16 and the attribute classifier.

Inception's features are used for FID and KID, VGG16's for precision and recall. torch-fidelity itself would download
missing weights, and would run code that a pickle contains. Here published weights are first read without running code,
and then passed to torch-fidelity.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from lantern_models.checkpoints.weight_files import find_weights, read_weights
from lantern_pipeline.data.image_files import to_float, to_uint8
from lantern_pipeline.fetch.manifest import resource_path, resource_sha256
from lantern_pipeline.world.attribute_classifier import AttributeClassifier

INCEPTION, VGG16 = "inception", "vgg16"


@dataclass(frozen=True)
class PublishedWeights:
    """Weights of a published model on the CPU, with the SHA-256 of `manifest.resource_sha256`."""

    path: Path
    sha256: str
    tensors: dict[str, Tensor]


def read_published(given: Path | str) -> PublishedWeights:
    """Read a file of weights: safetensors, or a pickle of tensors."""
    path = find_weights(resource_path(given))
    return PublishedWeights(path, resource_sha256(given), read_weights(path).tensors)


def describe_weights(metric: str, name: str, sha256: str | None) -> dict[str, str | None]:
    """Return the two columns of the result table that identify the model of `metric`."""
    return {f"{metric}_extractor": name, f"{metric}_weights_sha256": sha256}


@dataclass(frozen=True)
class Extractor:
    """Network of torch-fidelity.

    Attributes:
        name: "<torch-fidelity's name of the network>/<layer>".
        module: maps uint8 images (n, 3, height, width) to a tuple of one tensor, float32 (n, width).
    """

    name: str
    sha256: str
    module: nn.Module

    @torch.inference_mode()
    def extract(self, pixels: Tensor) -> Tensor:
        """Return the features of uint8 images, float32 (n, width) on the CPU."""
        device = next(self.module.parameters()).device
        # Full float32 precision on a GPU: TensorFloat-32 would change the FID.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            return self.module(pixels.to(device))[0].float().cpu()


@torch.inference_mode()
def classifier_features(classifier: AttributeClassifier, images: Tensor) -> Tensor:
    """Return the features, float32 (n, num_features) on the CPU, of images in [-1, 1]."""
    # Rounded to 8 bits, as in a PNG file.
    return classifier.features(to_float(to_uint8(images))).cpu()


def load_extractor(name: str, layer: str, path: Path | str, device: torch.device | str = "cpu") -> Extractor:
    """Load the network `name` of torch-fidelity's registry, with the features of one layer."""
    # Imported here: torch-fidelity takes seconds to import, and ablations do not need it.
    from torch_fidelity.registry import FEATURE_EXTRACTORS_REGISTRY

    kind = FEATURE_EXTRACTORS_REGISTRY[name]
    layers = kind.get_provided_features_list()
    if layer not in layers:
        raise ValueError(f"the extractor {name} has no layer {layer!r}; it has {', '.join(layers)}")
    weights, buffer = read_published(path), io.BytesIO()
    # torch-fidelity wants a file, so it gets the tensors as a file in memory.
    torch.save(weights.tensors, buffer)
    buffer.seek(0)
    try:
        module = kind(name, [layer], feature_extractor_weights_path=buffer)
    except RuntimeError as error:
        # PyTorch's message has the class in its first line, and the first wrong tensor in the second.
        lines = str(error).strip().splitlines()
        reason = (lines[1] if len(lines) > 1 else lines[0]).strip()
        raise ValueError(f"{weights.path} does not hold the weights of {name}: {reason[:200]}") from error
    return Extractor(f"{name}/{layer}", weights.sha256, module.eval().requires_grad_(False).to(device))


def load_extractors(
    files: Mapping[str, Path | str], vgg16_layer: str, device: torch.device | str
) -> dict[str, Extractor]:
    """Load both published networks, under the keys INCEPTION and VGG16."""
    # "inception-v3-compat" is the TensorFlow graph of 2015, which published FID and KID use.
    inception = load_extractor("inception-v3-compat", "2048", files["inception_weights"], device)
    # Precision and recall depend on VGG16's layer: "fc2_relu", or "fc2", the same before its ReLU, which LANTERN's
    # authors use.
    return {INCEPTION: inception, VGG16: load_extractor("vgg16", vgg16_layer, files["vgg16_weights"], device)}
