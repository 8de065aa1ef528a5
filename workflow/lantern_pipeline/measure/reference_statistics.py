"""The real images that FID, KID, precision and recall compare with, as features or statistics in one file with hashes.

Measured once from a folder of images; or the mean and covariance that others publish (an .npz file with mu and sigma),
which know FID alone.
"""

from __future__ import annotations

import hashlib
import itertools
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from lantern.io import load_tensors, save_tensors
from lantern_pipeline.data.image_files import NONE, Preprocessing, read_images
from lantern_pipeline.fetch.manifest import resource_path, resource_sha256
from lantern_pipeline.measure.distances import Gaussian
from lantern_pipeline.measure.feature_extractors import INCEPTION, Extractor

KIND = "reference_set"


@dataclass(frozen=True)
class ReferenceSet:
    """What is known of the real images."""

    name: str  # of the set, for tables
    gaussian: Gaussian  # of the Inception features
    # INCEPTION or VGG16 -> (images, width) float32; lacks what is not known
    features: Mapping[str, Tensor] = field(default_factory=dict)
    num_images: int | None = None  # in the set; None where a file of statistics does not say
    preprocessing: str | None = None  # name of a `Preprocessing`; None where a file of statistics does not say
    sha256: str = ""  # of the file that the set was read from; of the images where it was just measured
    # INCEPTION or VGG16 -> (name, sha256 of its weights)
    extractors: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def to(self, device: torch.device | str) -> ReferenceSet:
        """The same on another device, which then computes what is compared with it."""
        features = {key: rows.to(device) for key, rows in self.features.items()}
        return replace(self, gaussian=self.gaussian.to(device), features=features)


def measure_reference(
    place: Path | str, name: str, extractors: Mapping[str, Extractor], preprocessing: str, batch_size: int = 64
) -> ReferenceSet:
    """Measures the .png, .jpg and .jpeg files below a folder or in a zip archive; `preprocessing` names a
    `Preprocessing`.
    """
    prepare, digest, num_images, shape = Preprocessing(preprocessing), hashlib.sha256(), 0, None
    parts: dict[str, list[Tensor]] = {key: [] for key in extractors}
    files = iter(tqdm(read_images(place), desc="reference", disable=None, leave=False))
    while batch := list(itertools.islice(files, batch_size)):
        for file, content in batch:
            digest.update(f"{file} {hashlib.sha256(content).hexdigest()}\n".encode())
        images = [prepare.read(file, content) for file, content in batch]
        shape = shape or images[0].shape
        _check_shapes(images, shape, place)
        num_images += len(images)
        for key, extractor in extractors.items():
            parts[key].append(extractor.extract(torch.stack(images)))
    features = {key: torch.cat(rows) for key, rows in parts.items()}
    described = {key: (extractor.name, extractor.sha256) for key, extractor in extractors.items()}
    gaussian = Gaussian.of(features[INCEPTION])
    return ReferenceSet(name, gaussian, features, num_images, preprocessing, digest.hexdigest(), described)


def check_images(place: Path | str, preprocessing: str, num: int = 8) -> None:
    """Opens the first `num` real images of a folder or zip archive as `measure_reference` will."""
    prepare, files = Preprocessing(preprocessing), itertools.islice(read_images(place), num)
    images = [prepare.read(file, content) for file, content in files]
    _check_shapes(images, images[0].shape, place)


def _check_shapes(images: Sequence[Tensor], shape: torch.Size, place: Path | str) -> None:
    if any(image.shape != shape for image in images):
        raise ValueError(
            f"the images of {place} are of different sizes; set metrics.published.preprocessing to something else than "
            f'"{NONE}", for example centre_lanczos_256'
        )


def save_reference(path: Path | str, reference: ReferenceSet) -> None:
    """Writes a measured set into one file: features, and the hashes of images and extractors."""
    metadata = {
        "kind": KIND,
        "name": reference.name,
        "num_images": reference.num_images,
        "preprocessing": reference.preprocessing,
        "images_sha256": reference.sha256,
        "extractors": {key: list(value) for key, value in reference.extractors.items()},
    }
    save_tensors(path, dict(reference.features), metadata)


def load_reference(
    given: Path | str, extractors: Mapping[str, Extractor], preprocessing: str, name: str | None = None
) -> ReferenceSet:
    """Reads a stored set, after comparing how it was made with how the generated images will be measured.

    `given` is what `save_reference` wrote, or an .npz file with mu (width,) and sigma (width, width) of the Inception
    features, which tells nothing of extractor and preprocessing: those are taken on trust; or the manifest of a
    resource that is one of these. Without a name the stored one, or the file's, is taken.
    """
    path, sha256 = resource_path(given), resource_sha256(given)
    if path.suffix == ".npz":
        return _load_statistics(path, name or path.stem, sha256)
    tensors, metadata = load_tensors(path)
    if metadata.get("kind") != KIND:
        raise ValueError(f"{path} should hold a {KIND}, found {metadata.get('kind', 'a foreign file')}")
    if metadata["preprocessing"] != preprocessing:
        raise ValueError(
            f"{path}: the reference images were prepared by {metadata['preprocessing']}, the generated ones are by "
            f"{preprocessing}; measure the reference again or change the config's preprocessing"
        )
    stored = {key: (value[0], value[1]) for key, value in metadata["extractors"].items()}
    for key, extractor in extractors.items():
        if stored.get(key) != (extractor.name, extractor.sha256):
            raise ValueError(
                f"{path}: the reference's features {key} are of {_describe(stored.get(key))}, expected "
                f"{_describe((extractor.name, extractor.sha256))}; measure the reference again"
            )
    gaussian = Gaussian.of(tensors[INCEPTION])
    found = name or metadata["name"]
    return ReferenceSet(found, gaussian, tensors, metadata["num_images"], preprocessing, sha256, stored)


def _load_statistics(path: Path, name: str, sha256: str) -> ReferenceSet:
    try:
        with np.load(path, allow_pickle=False) as arrays:  # noqa: TID251
            mean, covariance = (torch.from_numpy(arrays[key].astype(np.float64)) for key in ("mu", "sigma"))
    except (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} should be an .npz file with the arrays mu and sigma ({error}); fetch it again"
        ) from error
    if mean.ndim != 1 or covariance.shape != (len(mean), len(mean)):
        raise ValueError(
            f"{path}: mu and sigma should be (width,) and (width, width), found {tuple(mean.shape)} and "
            f"{tuple(covariance.shape)}"
        )
    return ReferenceSet(name, Gaussian(mean, covariance), sha256=sha256)


def _describe(extractor: tuple[str, str] | None) -> str:
    return "no extractor" if extractor is None else f"{extractor[0]} with weights {extractor[1][:12]}"
