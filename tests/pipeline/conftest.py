"""Fixtures of tests/pipeline."""

from dataclasses import replace

import pytest
import torch

from helpers.paths import ROOT
from lantern.io import write_json
from lantern.models.draft import DraftModel
from lantern.models.stored import save_model
from lantern.models.target import TargetConfig, TargetModel
from lantern_models import loading
from lantern_models.cards.card import ImageSettings, read_card
from lantern_models.images.shapes import ImageTokenizer, TokenizerConfig
from lantern_models.text.encoders import describe_features


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Return a folder with small random models in models/embedded, in which nothing has run."""
    weights = tmp_path / "models" / "embedded"
    torch.manual_seed(0)
    target = TargetModel(TargetConfig(32, 2, 2, 32, 4, num_text_tokens=16, caption_dim=256)).eval()
    save_model(weights / "tokenizer.safetensors", ImageTokenizer(TokenizerConfig(24, 4, 32, 4, 8, 8, 1)))
    save_model(weights / "target.safetensors", target, {"text": describe_features("words")})
    save_model(weights / "drafter.safetensors", DraftModel.from_target(target, 0))
    images = ImageSettings(size=24, grid=4, codebook_size=32, code_dim=4)
    card = replace(
        read_card(ROOT / "models" / "embedded"), images=images, target={"dim": 32, "num_layers": 2, "num_heads": 2}
    )
    write_json(weights / "card.json", card.to_dict())
    monkeypatch.setattr(loading, "HOMES", (tmp_path,))
    monkeypatch.chdir(tmp_path)
    return tmp_path
