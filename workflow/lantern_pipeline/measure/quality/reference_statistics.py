"""Reference sets: the real images with which FID and similar metrics compare generated images.

A reference set is stored as one file of features, which are extracted once from a folder of images. The file also has
hashes of the images and of the networks. Alternatively, it is a published .npz file with the mean (mu) and the
covariance (sigma) of features. A .npz file suffices for FID, but not for KID, precision and recall.
"""

from __future__ import annotations

import hashlib
import itertools
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from lantern.io import load_tensors
from lantern_pipeline.data.image_files import NONE, Preprocessing, read_images
from lantern_pipeline.fetch.manifest import resource_path, resource_sha256
from lantern_pipeline.measure.quality.distances import (
    Gaussian,
    measure_fid,
    measure_kid,
    measure_precision_recall,
    subset_size_of,
)
from lantern_pipeline.measure.quality.feature_extractors import INCEPTION, VGG16, Extractor
from lantern_pipeline.schema.run_config import FidelitySettings

KIND = "reference_set"  # value of key "kind" in the metadata of a file
_AGAIN = "name the folder of its images in metrics.published.reference.images, which measures them again"


class SetColumns(NamedTuple):
    """Column names for one network. `frechet` is FID, and `kernel` KID, for Inception only."""

    frechet: str
    kernel: str
    precision: str = "precision"
    recall: str = "recall"


OF_INCEPTION = SetColumns("fid", "kid")
OF_CLASSIFIER = SetColumns("frechet_distance", "kernel_distance")
OF_EFFICIENTNET = SetColumns(*(f"efficientnet_{column}" for column in OF_CLASSIFIER))


@dataclass(frozen=True)
class Reference:
    """Reference set as features (images, width) on one device. Metrics of features that are None are left out.

    Attributes:
        columns: columns of the result table that identify the set: reference (its name), num_reference (number of
            images) and reference_sha256 (only if it was read from a file). EfficientNet's have its name as a prefix.
        gaussian: for FID.
        of_distances: features for KID.
        of_prc: features for precision and recall.
        scale: (mean, standard deviation), (width,) each, with which the features of generated images are standardised.
            None if raw features are compared.
    """

    columns: Mapping[str, object]
    gaussian: Gaussian
    of_distances: Tensor | None
    of_prc: Tensor | None
    scale: tuple[Tensor, Tensor] | None = None
    names: SetColumns = OF_INCEPTION
    _measured: dict[bytes, dict[str, float]] = field(default_factory=dict)

    def compare(self, features: Tensor, settings: FidelitySettings, seed: int) -> dict[str, float]:
        """Return column -> value for a set of images with raw features, float32 (n, width), on the CPU."""
        # Several methods may have identical images. Settings and seed are the same in all calls.
        key = hashlib.sha256(features.numpy().tobytes()).digest()
        if key not in self._measured:
            self._measured[key] = self._compare(features, settings, seed)
        return self._measured[key]

    def distances(self, features: Tensor, others: Tensor) -> dict[str, Tensor]:
        """Return column feature_distance, (n,): the root mean square difference of standardised features."""
        # Features with unknown scales cannot be standardised. With a scale, the mean cancels in the difference.
        if self.scale is None:
            return {}
        return {"feature_distance": ((features - others) / self.scale[1]).square().mean(dim=1).sqrt()}

    def _compare(self, features: Tensor, settings: FidelitySettings, seed: int) -> dict[str, float]:
        scaled = features if self.scale is None else (features - self.scale[0]) / self.scale[1]
        width, names = len(self.gaussian.mean), self.names
        # Published metrics use two networks, whose features are side by side. Others use the same features for all
        # metrics.
        of_distances, of_prc = (scaled, scaled) if scaled.shape[1] == width else (scaled[:, :width], scaled[:, width:])
        values = {names.frechet: measure_fid(of_distances, self.gaussian)}
        if self.of_distances is not None:
            size = settings.kid_subset_size
            value, spread = measure_kid(
                of_distances, self.of_distances, subset_size=size, num_subsets=settings.kid_subsets, seed=seed
            )
            size = subset_size_of(size, len(features), len(self.of_distances))
            values |= {names.kernel: value, f"{names.kernel}_std": spread, f"{names.kernel}_subset_size": size}
        if self.of_prc is not None:
            precision, recall = measure_precision_recall(of_prc, self.of_prc, neighbours=settings.prc_neighbours)
            values |= {names.precision: precision, names.recall: recall}
        return values


def measure_reference(
    place: Path | str, name: str, extractors: Mapping[str, Extractor], preprocessing: str, batch_size: int = 64
) -> tuple[dict[str, Tensor], dict[str, object]]:
    """Extract features of all real images (.png, .jpg and .jpeg) in a folder, searched recursively, or zip archive.

    Returns:
        (features, metadata). `features` maps the key of each extractor to float32 (images, width). `metadata` states
        how they were made, which `load_reference` checks.
    """
    prepare, digest, shape = Preprocessing(preprocessing), hashlib.sha256(), None
    parts: dict[str, list[Tensor]] = {key: [] for key in extractors}
    files = iter(tqdm(read_images(place), desc="reference", disable=None, leave=False))
    # Files are read batch by batch, because a reference set may have tens of thousands.
    while batch := list(itertools.islice(files, batch_size)):
        for file, content in batch:
            # The hash of all images covers their names and contents, in the order in which they are read.
            digest.update(f"{file} {hashlib.sha256(content).hexdigest()}\n".encode())
        images = [prepare.read(file, content) for file, content in batch]
        shape = shape or images[0].shape  # all images must have the size of the first
        _check_shapes(images, shape, place)
        for key, extractor in extractors.items():
            parts[key].append(extractor.extract(torch.stack(images)))
    features = {key: torch.cat(rows) for key, rows in parts.items()}
    return features, {
        "kind": KIND,
        "name": name,
        "num_images": len(features[INCEPTION]),
        "preprocessing": preprocessing,
        "images_sha256": digest.hexdigest(),
        "extractors": {key: [extractor.name, extractor.sha256] for key, extractor in extractors.items()},
    }


def check_images(place: Path | str, preprocessing: str, num: int = 8) -> None:
    """Open the first `num` images, to find errors before `measure_reference` runs."""
    prepare, files = Preprocessing(preprocessing), itertools.islice(read_images(place), num)
    images = [prepare.read(file, content) for file, content in files]
    _check_shapes(images, images[0].shape, place)


def _check_shapes(images: Sequence[Tensor], shape: torch.Size, place: Path | str) -> None:
    if any(image.shape != shape for image in images):
        raise ValueError(
            f"the images of {place} are of different sizes; set metrics.published.preprocessing to something else than "
            f'"{NONE}", for example centre_lanczos_256'
        )


def load_reference(
    given: Path | str,
    extractors: Mapping[str, Extractor],
    preprocessing: str,
    name: str | None = None,
    device: torch.device | str = "cpu",
) -> Reference:
    """Read a stored reference set, and check that its features were extracted as those of generated images will be.

    `name` replaces the set's own name in the results.
    """
    path, sha256 = resource_path(given), resource_sha256(given)
    # An .npz file does not state extractor and preprocessing, so these are not checked.
    if path.suffix == ".npz":
        columns = {"reference": name or path.stem, "num_reference": None, "reference_sha256": sha256}
        return Reference(columns, _load_statistics(path).to(device), None, None)
    tensors, metadata = load_tensors(path)
    if metadata.get("kind") != KIND:
        raise ValueError(f"{path} should hold a {KIND}, found {metadata.get('kind', 'a file of another kind')}")
    if metadata["preprocessing"] != preprocessing:
        raise ValueError(
            f"{path}: the reference images were prepared by {metadata['preprocessing']}, the generated ones are by "
            f"{preprocessing}; {_AGAIN}, or set metrics.published.preprocessing to {metadata['preprocessing']}"
        )
    for key, extractor in extractors.items():
        stored = metadata["extractors"].get(key)
        if stored != [extractor.name, extractor.sha256]:
            raise ValueError(
                f"{path}: the reference's features {key} are of {stored}, expected {extractor.name} with weights "
                f"{extractor.sha256}; {_AGAIN}"
            )
    number = metadata["num_images"]
    columns = {"reference": name or metadata["name"], "num_reference": number, "reference_sha256": sha256}
    features = {key: rows.to(device) for key, rows in tensors.items()}
    return Reference(columns, Gaussian.of(tensors[INCEPTION]).to(device), features[INCEPTION], features.get(VGG16))


def _load_statistics(path: Path) -> Gaussian:
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
    return Gaussian(mean, covariance)
