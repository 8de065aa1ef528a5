"""AttributeClassifier features for torch-fidelity's metrics.

torch-fidelity's own extractors (Inception, VGG, CLIP) expect photographs of 224 pixels and more, and weights from the
network. The embedded world registers its attribute classifier instead.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import Dataset
from torch_fidelity import FeatureExtractorBase, register_feature_extractor
from torch_fidelity.registry import FEATURE_EXTRACTORS_REGISTRY

from lantern.checkpoints.native import load_model
from lantern_pipeline.data.image_files import to_float, to_uint8
from lantern_pipeline.world.attribute_classifier import AttributeClassifier

EXTRACTOR_NAME = "attribute_classifier"
LAYER = "features"


class AttributeClassifierExtractor(FeatureExtractorBase):
    """The attribute classifier as torch-fidelity knows an extractor: uint8 images in, one tuple of tensors out."""

    def __init__(
        self,
        name: str,
        features_list: list[str],
        feature_extractor_weights_path: str | None = None,
        attribute_classifier: AttributeClassifier | None = None,
        feature_mean: Tensor | None = None,
        feature_std: Tensor | None = None,
        **kwargs: object,
    ) -> None:
        """Builds the extractor; torch-fidelity calls this with the keyword arguments of `calculate_metrics`.

        Args:
            name: EXTRACTOR_NAME.
            features_list: [LAYER].
            feature_extractor_weights_path: a attribute classifier checkpoint; or
            attribute_classifier: the loaded model.
            feature_mean: (num_features,) subtracted from the features; None for zero.
            feature_std: (num_features,) by which they are then divided; None for one.
            kwargs: torch-fidelity's further options, none of which apply.

        Raises:
            ValueError: neither a path nor a model was given.
        """
        super().__init__(name, features_list)
        if attribute_classifier is None and feature_extractor_weights_path is None:
            raise ValueError(
                f"{EXTRACTOR_NAME} needs feature_extractor_weights_path, the checkpoint of a trained "
                "attribute classifier"
            )
        self.attribute_classifier = (
            attribute_classifier
            if attribute_classifier is not None
            else load_model(feature_extractor_weights_path, AttributeClassifier)
        )
        width = self.attribute_classifier.config.num_features
        self.register_buffer("mean", torch.zeros(width) if feature_mean is None else feature_mean)
        self.register_buffer("std", torch.ones(width) if feature_std is None else feature_std)

    @staticmethod
    def get_provided_features_list() -> tuple[str]:
        """Names of the layers on offer: one."""
        return (LAYER,)

    @staticmethod
    def get_default_feature_layer_for_metric(metric: str) -> str:
        """The layer for a metric: the same for all."""
        return LAYER

    @staticmethod
    def can_be_compiled() -> bool:
        """False: compiling costs more than the net does."""
        return False

    def forward(self, input: Tensor) -> tuple[Tensor]:
        """Extracts features of uint8 images (n, 3, S, S): ((n, num_features) float32,)."""
        return ((self.attribute_classifier.features(to_float(input)) - self.mean) / self.std,)


class ImageTensors(Dataset):
    """Images in memory as the uint8 dataset that torch-fidelity reads."""

    def __init__(self, images: Tensor) -> None:
        """Takes images (n, 3, S, S), float32 in [-1, 1] or uint8."""
        self.images = images if images.dtype == torch.uint8 else to_uint8(images)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        return self.images[index]


def register_attribute_classifier() -> str:
    """Registers the extractor with torch-fidelity, once per process; returns its name for `calculate_metrics`."""
    if EXTRACTOR_NAME not in FEATURE_EXTRACTORS_REGISTRY:
        register_feature_extractor(EXTRACTOR_NAME, AttributeClassifierExtractor)
    return EXTRACTOR_NAME


def extract_features(attribute_classifier: AttributeClassifier, images: Tensor, batch_size: int = 64) -> Tensor:
    """Extracts raw attribute classifier features through the registered extractor.

    Args:
        attribute_classifier: in evaluation mode.
        images: (n, 3, S, S), float32 in [-1, 1] or uint8.
        batch_size: images per forward.

    Returns:
        (n, num_features) float32, on the CPU.
    """
    device = next(attribute_classifier.parameters()).device
    build = FEATURE_EXTRACTORS_REGISTRY[register_attribute_classifier()]
    extractor = build(EXTRACTOR_NAME, [LAYER], attribute_classifier=attribute_classifier).eval().to(device)
    stored = ImageTensors(images).images
    with torch.inference_mode():
        return torch.cat([extractor(rows.to(device))[0].cpu() for rows in stored.split(batch_size)])


def feature_scale(reference: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation by which features are standardised before any distance is taken.

    KID's cubic kernel and the distances behind precision and recall depend on the scale of the features; a net's raw
    features have none that means anything, and a few loud ones would decide. Standardised by the reference set, all
    count alike.

    Args:
        reference: (n, num_features) float32, raw features of the reference images.

    Returns:
        (mean, std), each (num_features,); a feature that is constant over the reference gets std 1.

    Raises:
        ValueError: fewer than two reference images.
    """
    if len(reference) < 2:
        raise ValueError(f"standardising features needs at least 2 reference images, got {len(reference)}")
    std = reference.std(dim=0)
    return reference.mean(dim=0), torch.where(std > 1e-6, std, torch.ones_like(std))
