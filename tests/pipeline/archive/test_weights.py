"""What is published beside trained weights."""

import hashlib
import json

import pytest
import torch

from conftest import ROOT, load_config
from lantern.checkpoints.native import load_model, read_report, save_model
from lantern.io import load_tensors, save_tensors
from lantern_pipeline.archive import weights
from lantern_pipeline.archive.weights import describe_training, hours_of, list_sums, round_model, thin_history
from lantern_pipeline.fetch.manifest import resource_path
from lantern_pipeline.world.attribute_classifier import AttributeClassifier, AttributeClassifierConfig

HISTORY = [{"step": 0, "elapsed_s": 2.0, "loss": 3.123456789}, {"step": 7, "elapsed_s": 1800.0, "loss": 2.0}]
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


def test_what_is_written_down_says_what_made_the_weights(files, tmp_path):
    training = describe(files)
    json.dumps(training, allow_nan=False)
    target = training["models"]["target"]
    assert target["sha256"] == hashlib.sha256(files["target"].read_bytes()).hexdigest()
    assert (target["num_parameters"], target["num_steps"], target["hours"]) == (1000, 8, 0.5)
    assert target["report"]["history"][0]["loss"] == 3.1235 and target["report"]["val_cross_entropy"] == 3.21
    assert training["seeds"] == {"seed": 0, "training_seed": 0} and "checkpoint" in training["config"]["target"]
    (tmp_path / "SHA256SUMS").write_text(list_sums(training))  # which jobs compare with
    for path in files.values():
        assert resource_path(path) == path
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(ValueError, match="is damaged"):
            resource_path(path)


def test_weights_too_large_for_a_repository_are_refused(files, monkeypatch):
    monkeypatch.setattr(weights, "MAX_BYTES", 4_000)
    with pytest.raises(ValueError, match=r"must have at most 0\.004 MB .*, got 0\.0; train smaller models"):
        describe(files)


def test_the_hours_of_an_interrupted_training_are_those_of_its_parts():
    seconds = [1, 1800, 3600, 5, 900, 2, 2700]
    assert hours_of([{"elapsed_s": float(second)} for second in seconds]) == 2.0


def test_a_long_history_is_thinned_but_for_what_was_measured_on_held_out_images():
    history = [{"step": i, "loss": 1.0} | ({"val_loss": 2.0} if i == 133 else {}) for i in range(600)]
    steps = [entry["step"] for entry in thin_history(history)]
    assert len(steps) == 62 and steps[:2] == [0, 10] and 133 in steps and steps[-1] == 599
    assert thin_history(history[:3]) == history[:3]
