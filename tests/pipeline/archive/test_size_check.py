"""A checkpoint of unknown origin gets no more memory than its file has bytes."""

import pytest
import torch

from lantern.checkpoints.native import save_model
from lantern.io import load_tensors, save_tensors
from lantern.models.config import target_parameters
from lantern.models.target import TargetConfig, TargetModel
from lantern_pipeline.archive.regenerate import check_model_size


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "model.safetensors"
    save_model(path, TargetModel(TargetConfig(32, 2, 2, 32, 4, 5, 16, ffn_multiple=16)))
    return path


def test_a_checkpoint_of_ours_passes(checkpoint):
    check_model_size(checkpoint, TargetConfig, target_parameters, 4)


@pytest.mark.parametrize(
    "sizes, words",
    [
        ({"dim": 2**16}, "asks for .* bytes of weights"),
        ({"num_layers": 10**9}, "must hold positive numbers"),
        ({"num_layers": -1}, "must hold positive numbers"),
        ({"num_heads": "2"}, "must hold positive numbers"),
        ({"foreign": 1}, "must hold positive numbers"),
        ({"grid": 400}, "grid should be 4"),
    ],
)
def test_a_model_that_asks_for_more_than_its_file_holds_is_not_built(checkpoint, sizes, words):
    tensors, metadata = load_tensors(checkpoint)
    save_tensors(checkpoint, tensors, {**metadata, "config": {**metadata["config"], **sizes}})
    with pytest.raises(ValueError, match=words):
        check_model_size(checkpoint, TargetConfig, target_parameters, 4)


def test_what_is_no_checkpoint_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    torch.save({"weight": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match="is truncated or is not a safetensors file"):
        check_model_size(path, TargetConfig, target_parameters, 4)
    save_tensors(path, {"weight": torch.zeros(1)})
    with pytest.raises(ValueError, match="must hold positive numbers"):
        check_model_size(path, TargetConfig, target_parameters, 4)
