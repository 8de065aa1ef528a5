"""Tests of references: measured once, stored with hashes, compared only with images measured alike."""

import dataclasses
import hashlib

import numpy as np
import pytest
import torch
from torch import nn

from helpers.published_stand_ins import write_pictures
from lantern.io import save_tensors
from lantern_pipeline.measure.quality.distances import Gaussian
from lantern_pipeline.measure.quality.feature_extractors import Extractor
from lantern_pipeline.measure.quality.reference_statistics import load_reference, measure_reference

WAY = "centre_lanczos_16"


class Means(nn.Module):
    """Extractor of mean colours and their squares, which can be checked by eye."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1 / 255), requires_grad=False)

    def forward(self, pixels):
        means = (pixels.float() * self.scale).mean(dim=(2, 3))
        return (torch.cat([means, means.square()], dim=1),)


EXTRACTORS = {"inception": Extractor("means/6", "a" * 64, Means()), "vgg16": Extractor("means/6", "b" * 64, Means())}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_pictures(tmp_path_factory.mktemp("real") / "images", 7, seed=0, sizes=((40, 30), (20, 50)))


@pytest.fixture(scope="module")
def measured(folder):
    return measure_reference(folder, "real", EXTRACTORS, WAY, batch_size=3)


def test_every_image_is_measured_in_the_order_of_names(measured, folder):
    (features, about), (others, alone) = measured, measure_reference(folder, "real", EXTRACTORS, WAY, batch_size=100)
    assert about["num_images"] == 7 and features["inception"].shape == (7, 6)
    assert torch.allclose(others["vgg16"], features["vgg16"], atol=1e-6)
    lines = [f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n" for file in sorted(folder.iterdir())]
    assert about == alone and about["images_sha256"] == hashlib.sha256("".join(lines).encode()).hexdigest()
    with pytest.raises(ValueError, match=r"are of different sizes; set metrics\.published\.preprocessing"):
        measure_reference(folder, "real", EXTRACTORS, "none", batch_size=1)


def test_a_stored_set_comes_back_with_the_hash_of_its_file_where_images_are_measured_alike(measured, tmp_path):
    stored, (features, _) = tmp_path / "features.safetensors", measured
    save_tensors(stored, *measured)
    found = load_reference(stored, EXTRACTORS, WAY)
    sha256 = hashlib.sha256(stored.read_bytes()).hexdigest()
    assert found.columns == {"reference": "real", "num_reference": 7, "reference_sha256": sha256}
    assert torch.equal(found.of_distances, features["inception"]) and torch.equal(found.of_prc, features["vgg16"])
    assert torch.equal(found.gaussian.covariance, Gaussian.of(features["inception"]).covariance)
    assert load_reference(stored, EXTRACTORS, WAY, name="mine").columns["reference"] == "mine"
    other = {**EXTRACTORS, "vgg16": dataclasses.replace(EXTRACTORS["vgg16"], sha256="c" * 64)}
    with pytest.raises(
        ValueError, match=r"features vgg16 are of \['means/6', 'b+'\], expected means/6 with weights c+;"
    ):
        load_reference(stored, other, WAY)
    with pytest.raises(ValueError, match="by centre_lanczos_16, the generated ones are by none; name the folder"):
        load_reference(stored, EXTRACTORS, "none")


def test_published_statistics_know_fid_alone(tmp_path):
    features = np.random.default_rng(0).normal(size=(20, 6))
    path = tmp_path / "coco.npz"
    np.savez(path, mu=features.mean(0), sigma=np.cov(features.T))
    found, expected = load_reference(path, EXTRACTORS, WAY), Gaussian.of(torch.from_numpy(features))
    assert found.columns["reference"] == "coco" and found.columns["num_reference"] is None
    assert found.of_distances is None and found.of_prc is None
    assert torch.allclose(found.gaussian.mean, expected.mean)
    assert torch.allclose(found.gaussian.covariance, expected.covariance)


def test_what_is_no_reference_is_named(tmp_path):
    np.savez(tmp_path / "no_sigma.npz", mu=np.zeros(3))
    np.savez(tmp_path / "odd.npz", mu=np.zeros(3), sigma=np.zeros((2, 2)))
    np.savez(tmp_path / "code.npz", mu=np.array([{}], dtype=object), sigma=np.zeros((1, 1)))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "odd.npz").read_bytes()[:100])
    (tmp_path / "cut.safetensors").write_bytes(b"abc")
    for name, message in {
        "no_sigma.npz": "should be an .npz file with the arrays mu and sigma",
        "odd.npz": r"should be \(width,\) and \(width, width\), found \(3,\) and \(2, 2\)",
        "code.npz": "should be an .npz file with the arrays mu and sigma",
        "cut.npz": "should be an .npz file with the arrays mu and sigma",
        "cut.safetensors": "truncated or is not a safetensors file",
    }.items():
        with pytest.raises(ValueError, match=message):
            load_reference(tmp_path / name, EXTRACTORS, WAY)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_reference(tmp_path / "nowhere.npz", EXTRACTORS, WAY)
