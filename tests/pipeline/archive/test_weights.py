"""Tests of what is published next to trained weights."""

import hashlib
import json

import pytest
import torch

from helpers.configs import load_config
from helpers.paths import ROOT
from lantern.io import load_tensors, save_tensors
from lantern.models.stored import load_model, read_report, save_model
from lantern_pipeline.archive.weights import describe_training, round_model
from lantern_pipeline.world.attribute_classifier import AttributeClassifier, AttributeClassifierConfig

HISTORY = [{"step": 0, "elapsed_s": 2.0, "loss": 3.123456789}, {"step": 7, "elapsed_s": 36001.2, "loss": 2.0}]
REPORTS = {"target": {"val_cross_entropy": 3.21}, "attribute_classifier": {"val": {"accuracy": 0.999}}}


@pytest.fixture
def files(tmp_path):
    files = {name: tmp_path / f"{name}.safetensors" for name in REPORTS}
    for path in files.values():
        save_tensors(path, {"a": torch.ones(1000, dtype=torch.bfloat16)})
    return files


def describe(files):
    reports = {name: {**report, "history": HISTORY} for name, report in REPORTS.items()}
    return describe_training(load_config([ROOT / "config.yaml"]), reports, files)


def test_a_rounded_file_is_half_as_large_and_loads_as_float32(tmp_path):
    model = AttributeClassifier(AttributeClassifierConfig(image_size=24, width=8, num_features=16)).eval()
    save_model(tmp_path / "a.safetensors", model, {"val": 1.0})
    round_model(tmp_path / "a.safetensors", tmp_path / "b.safetensors", {"more": 2})
    tensors, _ = load_tensors(tmp_path / "b.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16, torch.int64}  # BatchNorm counts batches
    assert (tmp_path / "b.safetensors").stat().st_size < 0.7 * (tmp_path / "a.safetensors").stat().st_size
    assert read_report(tmp_path / "b.safetensors") == {"val": 1.0, "more": 2}
    loaded = load_model(tmp_path / "b.safetensors", AttributeClassifier)
    for name, tensor in loaded.state_dict().items():
        assert tensor.dtype in (torch.float32, torch.int64)
        assert torch.equal(tensor, model.state_dict()[name].to(tensors[name].dtype).to(tensor.dtype))


def test_what_is_written_down_says_what_made_the_weights(files):
    training = describe(files)
    json.dumps(training, allow_nan=False)
    target = training["models"]["target"]
    assert target["sha256"] == hashlib.sha256(files["target"].read_bytes()).hexdigest()
    assert (target["num_parameters"], target["num_steps"], target["hours"]) == (1000, 8, 10.0)
    assert target["report"] == {**REPORTS["target"], "history": HISTORY}
    assert training["seeds"] == {"seed": 0, "training_seed": 0} and "checkpoint" in training["config"]["target"]
