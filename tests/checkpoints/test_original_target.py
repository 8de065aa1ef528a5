"""What an original file of LlamaGen does not tell is logged; what its size tells is compared."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import pytest
import torch

from lantern.checkpoints.files import WeightFile
from lantern.checkpoints.llamagen import read_target
from lantern.checkpoints.original_target import check_original
from lantern.models.config import LLAMAGEN_SIZES
from lantern.models.target import TargetConfig
from published_layouts import CONFIG, ORIGINAL, read_original, refusal


def config_of(size: str, **changes: int) -> TargetConfig:
    sizes = {**LLAMAGEN_SIZES[size], **changes}
    return TargetConfig(**sizes, vocab_size=16384, grid=16, num_text_tokens=120, caption_dim=2048, ffn_multiple=256)


def test_a_renamed_file_is_read_with_the_note_that_its_stage_was_not_checked(tmp_path, caplog):
    shutil.copy(ORIGINAL, tmp_path / "mine.pt")
    read_target(tmp_path / "mine.pt", CONFIG)
    assert "mine.pt: neither the file's name nor its training's arguments say" in caplog.text
    assert "images of 16 x 16 tokens" in caplog.text


@pytest.mark.parametrize("where", ["name", "arguments"])
def test_a_stage_that_was_checked_needs_no_note(tmp_path, caplog, where):
    path = tmp_path / ("t2i_XL_stage1_256.pt" if where == "name" else "mine.pt")
    args = argparse.Namespace(image_size=256) if where == "arguments" else None
    torch.save({"model": read_original(), "args": args}, path)
    read_target(path, CONFIG)
    assert "of stage 1 or 2" not in caplog.text


def test_heads_follow_from_a_named_size(caplog):
    weights = WeightFile(Path("t2i_XL_stage1_256.pt"), {})
    for size in LLAMAGEN_SIZES:
        check_original(weights, config_of(size))
    assert not caplog.records
    sentence = refusal(lambda: check_original(weights, config_of("XL", num_heads=16)))
    for words in ("t2i_XL_stage1_256.pt: num_heads should be 20", "LlamaGen-XL", "found 16", "target.num_heads"):
        assert words in sentence
    check_original(weights, config_of("XL", num_layers=35, num_heads=16))
    assert "the 16 heads of config key target.num_heads were not checked" in caplog.text
