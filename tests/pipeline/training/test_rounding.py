"""Rounding of finished models: what the files hold, and that models still load and are measured."""

import torch

from conftest import ROOT, load_config
from lantern.checkpoints.native import load_model, read_report, save_model
from lantern.io import load_tensors
from lantern.models.draft import DraftModel
from lantern.models.target import TargetConfig, TargetModel
from lantern_pipeline.data.image_sources import make_source
from lantern_pipeline.training.clip import RECIPE, make_config
from lantern_pipeline.training.rounding import measure_models, round_model
from lantern_pipeline.world.attribute_classifier import AttributeClassifier, AttributeClassifierConfig
from lantern_pipeline.world.clip import ClipModel
from lantern_pipeline.world.tokenizer import ImageTokenizer, TokenizerConfig


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


def test_all_five_models_are_measured_together(tmp_path):
    config = load_config([ROOT / "config.yaml", ROOT / "tests/workflow/tiny.yaml"])
    source, codes = make_source(config["data"], 0), {"vocab_size": 32, "grid": 4}
    target = TargetModel(TargetConfig(32, 2, 2, **codes, num_text_tokens=16, caption_dim=256)).eval()
    models = {
        "tokenizer": ImageTokenizer(TokenizerConfig(24, 4, 32, 4, 8, 8, 1)),
        "target": target,
        "drafter": DraftModel.from_target(target, 0),
        "attribute_classifier": AttributeClassifier(AttributeClassifierConfig(24, 8, 16)),
        "clip": ClipModel(make_config(source, RECIPE)),
    }
    files = {name: tmp_path / f"{name}.safetensors" for name in models}
    for name, model in models.items():
        save_model(files[name], model.eval(), {"num_steps": 1})
    measured = measure_models(files, config)
    assert 3 < measured["val_cross_entropy"] < 5 and measured["val_expected_length"] >= 1
    assert all(0 <= measured[key] <= 1 for key in measured if key.endswith("accuracy") or "acceptance" in key)
