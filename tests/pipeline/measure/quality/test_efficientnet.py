"""Tests of EfficientNet-lite0's features: they see noise, blur and missing classes."""

import hashlib

import pytest
import torch
import torch.nn.functional as F

from helpers.configs import load_config
from helpers.paths import ROOT
from helpers.tiny_quality import NUM, OPTIONS, SETTINGS, TOKENS, VOCAB, make_parts, make_records, measure
from lantern.methods import make_method
from lantern_pipeline.data.image_sources import SceneSource
from lantern_pipeline.measure.quality.metric_models import MetricModels, load_parts
from lantern_pipeline.measure.registry import CHOICES, EFFICIENTNET
from lantern_pipeline.schema.run_config import FidelitySettings, MetricChoices

# Few images, because each takes 60 ms. A set is compared with another half of the same size.
NUM_IMAGES = 40
SETS = FidelitySettings(num_reference=NUM_IMAGES, kid_subset_size=20, kid_subsets=20, prc_neighbours=3)


@pytest.fixture(scope="module")
def efficientnet():
    for name in CHOICES[EFFICIENTNET][True].packages:
        pytest.importorskip(name, reason="needs the extra efficientnet of pyproject.toml")
    section = load_config([ROOT / "config.yaml"])["metrics"]
    off = {"fidelity": None, "clip": None, "prompt_accuracy": False, "hps": False, "published": section["published"]}
    (found,) = load_parts(MetricChoices(**off, efficientnet=True), {}, "cpu").values()
    return found


def with_noise(images, width):
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    return (images + width * noise).clamp(-1, 1)


def blurred(images, width):
    ramp = torch.arange(-3, 4)
    kernel = torch.exp(-(ramp**2) / (2 * width**2))
    kernel = torch.outer(kernel, kernel) / kernel.sum() ** 2
    padded = F.pad(images, (3, 3, 3, 3), mode="replicate")
    return F.conv2d(padded, kernel.expand(3, 1, 7, 7), groups=3)


def scenes():
    """Return images of the shapes dataset in [-1, 1], and whether a scene has a ring or a circle."""
    source = SceneSource(0, image_size=48)
    captions = source.captions("val", range(6 * NUM_IMAGES))
    is_round = torch.tensor([any(word in caption for word in ("ring", "circle")) for caption in captions])
    return source.images("val", range(6 * NUM_IMAGES)), (~is_round).int()


@pytest.mark.slow
def test_distances_rise_with_noise_blur_and_swapped_classes(efficientnet):
    images, classes = scenes()
    real, original = images[:NUM_IMAGES], images[NUM_IMAGES : 2 * NUM_IMAGES]
    few = images[2 * NUM_IMAGES :][classes[2 * NUM_IMAGES :] == classes.min()][:NUM_IMAGES]
    reference = efficientnet.reference(real.split(32), "real images")
    changed = {
        "original": [original],
        "noise": [with_noise(original, width) for width in (0.1, 0.3)],
        "blur": [blurred(original, width) for width in (0.7, 1.5)],
        "swapped classes": [few[: len(original)]],
    }
    found = {
        name: [reference.compare(efficientnet.extract(images), SETS, 0) for images in sets]
        for name, sets in changed.items()
    }
    for metric in ("frechet", "kernel"):
        value = {name: [row[getattr(reference.names, metric)] for row in rows] for name, rows in found.items()}
        ((lowest,), noise, blur, (swapped,)) = value.values()
        assert lowest < noise[0] < noise[1] and lowest < blur[0] < blur[1] and lowest < swapped, value
    assert found["noise"][1]["efficientnet_precision"] < found["original"][0]["efficientnet_precision"]


def test_features_do_not_depend_on_the_batch_and_torch_fidelity_knows_the_extractor(efficientnet):
    from torch_fidelity.utils import create_feature_extractor

    images = SceneSource(0, image_size=48).images("val", range(5))
    features = efficientnet.extract(images)
    assert features.shape == (5, 1280) and features.min() >= 0 and features.std() > 0
    parts = torch.cat([efficientnet.extract(part) for part in images.split(2)])
    assert torch.allclose(features, parts, atol=1e-4)
    options = {"cuda": False, "verbose": False, "feature_extractor_weights_path": None}
    extractor = create_feature_extractor("efficientnet-lite0", ["1280"], **options)
    (direct,) = extractor(((images + 1) * 127.5).round().clamp(0, 255).byte())
    assert torch.allclose(features, direct, atol=1e-4)


@pytest.mark.slow
def test_the_quality_table_names_the_network_and_its_reference(efficientnet):
    from lantern_pipeline.measure.quality.efficientnet import weights_file

    source = SceneSource(0, image_size=48, num_train=16)
    prompts = source.prompts("seen", NUM)
    models = MetricModels(**make_parts(source.vocabulary), of_sets={EFFICIENTNET: efficientnet})
    codes = torch.randint(VOCAB, (NUM, TOKENS), generator=torch.Generator().manual_seed(0))
    records = {"autoregressive": make_records(codes, make_method("autoregressive"), prompts)}
    rows, images = measure(records, prompts, source, models, **OPTIONS)
    values = rows.set_index("method_id").filter(like="efficientnet_")
    names = ("frechet_distance", "kernel_distance", "precision", "recall")
    assert values[[f"efficientnet_{name}" for name in names]].notna().all(axis=None)
    assert (values["efficientnet_extractor"] == "efficientnet-lite0/1280").all()
    digest = hashlib.sha256(weights_file().read_bytes()).hexdigest()
    assert (values["efficientnet_weights_sha256"] == digest).all()
    assert (values["efficientnet_num_reference"] == SETTINGS.num_reference).all()
    assert f"seen images from {NUM} on" in values["efficientnet_reference"].iloc[0]
    assert not {"frechet_distance", "precision", "reference"} & set(rows) and "feature_distance" not in images
    with pytest.raises(ValueError, match=r"metrics\.efficientnet compares with held-out images"):
        measure(records, prompts, None, models, **OPTIONS)
