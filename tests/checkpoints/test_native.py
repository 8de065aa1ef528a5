"""Checkpoints of our own: what is written is read, what is wrong is named, what failed leaves nothing."""

from __future__ import annotations

import pytest
import torch
from tiny_codes import CONFIG

from lantern.checkpoints.native import load_model, load_weights, save_model
from lantern.models.draft import DraftModel
from lantern.models.target import TargetModel


@pytest.fixture(scope="module")
def model() -> TargetModel:
    torch.manual_seed(0)
    return TargetModel(CONFIG).eval()


def test_checkpoints_round_trip(model, tmp_path):
    save_model(tmp_path / "t.safetensors", model, {"note": 1})
    loaded = load_model(tmp_path / "t.safetensors", TargetModel)
    assert loaded.config == model.config
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name])
    draft = DraftModel.from_target(model, 0)
    save_model(tmp_path / "d.safetensors", draft)
    assert load_model(tmp_path / "d.safetensors", DraftModel).config == draft.config


def test_wrong_files_are_named(model, tmp_path):
    path = tmp_path / "t.safetensors"
    save_model(path, model)
    with pytest.raises(ValueError, match=r"t\.safetensors should hold a draft_model, found target_model"):
        load_model(path, DraftModel)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"t\.safetensors"):
        load_model(path, TargetModel)
    with pytest.raises(FileNotFoundError, match=r"absent\.safetensors"):
        load_model(tmp_path / "absent.safetensors", TargetModel)


def test_wrong_weights_name_file_key_expected_and_found(model, tmp_path):
    path = tmp_path / "x.safetensors"
    state = dict(model.state_dict())
    head = state.pop("head.weight")
    with pytest.raises(ValueError, match=r"x\.safetensors lacks the tensor head\.weight of shape \(8, 32\)"):
        load_weights(model, state, path)
    with pytest.raises(ValueError, match=r"head\.weight should have shape \(8, 32\), found \(4, 32\)"):
        load_weights(model, state | {"head.weight": head[:4]}, path)
    with pytest.raises(ValueError, match=r"foreign tensor extra"):
        load_weights(model, state | {"head.weight": head, "extra": head}, path)


def test_nothing_is_left_of_a_checkpoint_that_failed_to_write(model, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "safetensors.torch.save_file", lambda *args, **kwargs: (_ for _ in ()).throw(OSError(28, "No space left"))
    )
    with pytest.raises(OSError, match="No space left"):
        save_model(tmp_path / "t.safetensors", model)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_half_precision_is_read_in_float32_unless_asked_otherwise(model, tmp_path):
    """As the shipped weights are stored; the head is float32 whatever is asked for."""
    narrow = TargetModel(CONFIG).bfloat16()
    save_model(tmp_path / "t.safetensors", narrow)
    read = {dtype: load_model(tmp_path / "t.safetensors", TargetModel, dtype=dtype) for dtype in (torch.float32, None)}
    assert {part.dtype for part in load_model(tmp_path / "t.safetensors", TargetModel).parameters()} == {torch.float32}
    assert read[None].dtype == torch.bfloat16 and read[None].head.weight.dtype == torch.float32
    for name, part in read[torch.float32].named_parameters():
        assert torch.equal(part, read[None].get_parameter(name).float())
