"""Feature extractors: torch-fidelity's Inception (FID, KID) and VGG16 (precision, recall); the attribute classifier.

torch-fidelity would fetch missing weights by itself and unpickle a file with whatever code it holds; here published
weights are read first, without code, and handed over.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from lantern.checkpoints.files import find_weights, read_weights
from lantern_pipeline.data.image_files import to_float, to_uint8
from lantern_pipeline.fetch.manifest import resource_path, resource_sha256
from lantern_pipeline.world.attribute_classifier import AttributeClassifier

INCEPTION, VGG16 = "inception", "vgg16"


@dataclass(frozen=True)
class PublishedWeights:
    """Tensors of a published file by name, on the CPU; its path, and the hash by which results name it."""

    path: Path
    sha256: str
    tensors: dict[str, Tensor]


def read_published(given: Path | str) -> PublishedWeights:
    """Reads a file of weights (safetensors, or a pickle of tensors) without running code; `given` is its path, its
    folder's, or the manifest of a resource.
    """
    path = find_weights(resource_path(given))
    return PublishedWeights(path, resource_sha256(given), read_weights(path).tensors)


def describe_weights(metric: str, name: str, sha256: str | None) -> dict[str, str | None]:
    """The columns that say what a metric was measured with: `name` is of the architecture, layer and text prefix."""
    return {f"{metric}_extractor": name, f"{metric}_weights_sha256": sha256}


@dataclass(frozen=True)
class Extractor:
    """An extractor "<torch-fidelity's name>/<layer>" with the hash of its weights; the module maps uint8 images
    (n, 3, height, width) to ((n, width) float32,).
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


@torch.inference_mode()
def classifier_features(classifier: AttributeClassifier, images: Tensor) -> Tensor:
    """Features of images (n, 3, S, S) in [-1, 1], rounded to 8 bits as a stored PNG is: (n, num_features) float32, on
    the CPU.
    """
    return classifier.features(to_float(to_uint8(images))).cpu()


def load_extractor(name: str, layer: str, path: Path | str, device: torch.device | str = "cpu") -> Extractor:
    """Loads an extractor that torch-fidelity knows from a file of weights, or the manifest of a resource.

    "inception-v3-compat" (the 2015 TensorFlow graph) with layer "2048" is that of published FID and KID; precision and
    recall differ between "vgg16" with "fc2_relu" and with "fc2", before the last rectifier, as LANTERN's authors do.
    """
    # Imported here: torch-fidelity takes seconds to import, and ablations do without.
    from torch_fidelity.registry import FEATURE_EXTRACTORS_REGISTRY

    kind = FEATURE_EXTRACTORS_REGISTRY[name]
    layers = kind.get_provided_features_list()
    if layer not in layers:
        raise ValueError(f"the extractor {name} has no layer {layer!r}; it has {', '.join(layers)}")
    weights, buffer = read_published(path), io.BytesIO()
    torch.save(weights.tensors, buffer)
    buffer.seek(0)
    try:
        module = kind(name, [layer], feature_extractor_weights_path=buffer)
    except RuntimeError as error:
        lines = str(error).strip().splitlines()
        reason = (lines[1] if len(lines) > 1 else lines[0]).strip()
        raise ValueError(f"{weights.path} does not hold the weights of {name}: {reason[:200]}") from error
    return Extractor(f"{name}/{layer}", weights.sha256, module.eval().requires_grad_(False).to(device))


def load_extractors(
    files: Mapping[str, Path | str], vgg16_layer: str, device: torch.device | str
) -> dict[str, Extractor]:
    """Loads the extractors of published fidelity: INCEPTION and VGG16 -> extractor."""
    inception = load_extractor("inception-v3-compat", "2048", files["inception_weights"], device)
    return {INCEPTION: inception, VGG16: load_extractor("vgg16", vgg16_layer, files["vgg16_weights"], device)}
