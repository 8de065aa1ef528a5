"""Tests of the decoders of several methods: which files are loaded by which name."""

from __future__ import annotations

import pytest
import torch

from lantern.io import save_tensors
from lantern.methods import MethodSpec
from lantern.models.draft import DraftModel
from lantern.models.stored import save_model
from lantern.models.target import TargetConfig, TargetModel
from lantern_pipeline.data.decoders import load_decoders, load_tables

SAMPLING = {"cfg_scale": 2.0, "top_k": 6, "top_p": 1.0, "filter_order": "top_k_first"}


def save_table(path, num_columns=4, name="nearest_codes"):
    table = torch.arange(num_columns).expand(12, -1) + torch.arange(12)[:, None] + 1
    save_tensors(path, {name: (table % 12).int()}, {})
    return path


@pytest.fixture
def files(tmp_path):
    """Write checkpoints of an untrained run with two tables of nearest codes."""
    config = {"dim": 32, "num_layers": 1, "num_heads": 2, "vocab_size": 12, "grid": 4}
    target = TargetModel(TargetConfig(**config, num_text_tokens=5, caption_dim=16, ffn_multiple=16))
    save_model(tmp_path / "target.safetensors", target)
    save_model(tmp_path / "drafter.safetensors", DraftModel.from_target(target, 0))
    return {
        "target": tmp_path / "target.safetensors",
        "drafter": tmp_path / "drafter.safetensors",
        "nearest_codes": [
            str(save_table(tmp_path / "l2.safetensors", 4)),
            str(save_table(tmp_path / "random.safetensors", 5)),
        ],
    }


def test_tables_are_named_after_their_files(tmp_path):
    names = ["l2_normalised.safetensors", "random.safetensors"]
    tables = load_tables([save_table(tmp_path / name, columns) for columns, name in enumerate(names, 1)])
    assert {name: tuple(table.shape) for name, table in tables.items()} == {
        "l2_normalised": (12, 1),
        "random": (12, 2),
    }
    assert all(table.dtype == torch.int16 for table in tables.values())
    assert list(load_tables(str(save_table(tmp_path / "l2.safetensors")))) == ["l2"]  # one needs no list
    assert load_tables([]) == {}


def test_each_decoder_reads_the_table_of_its_method_and_all_share_the_models(files):
    relaxed = {"tree": "chain3", "drafts": "coupled", "acceptance": "proximity", "k": 3}
    runs = [
        (MethodSpec.of("autoregressive", method_id="autoregressive"), 1.0),
        (MethodSpec.of("a", neighbours="l2", method_id="a", **relaxed), 1.0),
        (MethodSpec.of("b", neighbours="random", method_id="b", **relaxed), 0.5),
    ]
    decoders = load_decoders(runs, SAMPLING, **files)
    assert [decoder.spec.method_id for decoder in decoders] == ["autoregressive", "a", "b"]
    assert [decoder.sampling.temperature for decoder in decoders] == [1.0, 1.0, 0.5]
    assert all(decoder.sampling.top_k == 6 for decoder in decoders)
    assert len({id(decoder.target) for decoder in decoders}) == 1
    assert decoders[0].models.nearest_codes is None
    assert [decoder.models.nearest_codes.shape[1] for decoder in decoders[1:]] == [4, 5]
