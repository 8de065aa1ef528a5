"""Tests of the cards and hub repositories that `lantern.load` uses."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest
import torch
from huggingface_hub import close_session, constants

import lantern
from helpers.configs import load_config, typed_config
from helpers.families import SPECIALS, save_tokenizer
from helpers.hub_server import HubServer
from helpers.paths import ROOT
from helpers.tiny_transformers import make_tiny
from lantern.models.stored import save_model
from lantern_methods.shift_heads import ShiftHeads
from lantern_models import loading
from lantern_models.cards.card import HubFiles, read_card
from lantern_models.cards.published import CARDS, HUB_FILES
from lantern_pipeline.data.model_cards import card_of
from lantern_pipeline.data.run_card import make_run_card

EMBEDDED = ROOT / "models" / "embedded"
OVERLAYS = {"embedded": [], "fashion": [ROOT / "experiments" / "fashion.yaml"]}


@pytest.mark.parametrize("name", OVERLAYS)
def test_a_shipped_card_is_what_the_config_and_the_weights_say(name):
    config = typed_config(load_config([ROOT / "config.yaml", *OVERLAYS[name]]))
    folder = ROOT / "models" / name
    card = read_card(folder)
    files = {part: f"{part}.safetensors" for part in ("target", "drafter", "tokenizer")}
    assert card.files == files and card.name == name and card.licence == "Apache-2.0"
    planned = {**card_of(config).to_dict(), "name": name, "licence": "Apache-2.0"}
    made = make_run_card(planned, config.text, config.data.source, folder / "target.safetensors", files)
    assert made == card
    target = lantern.load(name).models.target.config
    assert card.target_config() == target


@pytest.mark.parametrize("name", OVERLAYS)
def test_shipped_weights_have_their_sums_and_stay_small(name):
    folder = ROOT / "models" / name
    lines = [line.split() for line in (folder / "SHA256SUMS").read_text().splitlines()]
    assert {file for _, file in lines} == {path.name for path in folder.glob("*.safetensors")}
    assert all(hashlib.sha256((folder / file).read_bytes()).hexdigest() == digest for digest, file in lines)
    assert sum((folder / file).stat().st_size for _, file in lines) <= 16_000_000


def test_a_card_of_another_version_is_one_sentence(tmp_path):
    for text in ("{}", "[]", '{"files": {}, "prompts": {"encoder": "t5", "colour": 1}, "images": {}}'):
        (tmp_path / "card.json").write_text(text)
        with pytest.raises(ValueError, match=r"card\.json is no model card of this version \(.*run the workflow again"):
            lantern.load(tmp_path)


def test_every_file_of_a_published_model_comes_from_a_known_repository():
    for name, card in CARDS.items():
        assert {"target", "tokenizer"} <= set(card.files), name
        assert ("text" in card.files) == (card.prompts.encoder != "classes"), name
        assert all(HUB_FILES[file.name] is file for file in card.files.values()), name
        assert card.licence and card.neighbours in ("l2", "l2_normalised"), name


def test_the_shift_heads_of_a_run_are_loaded_with_it(tmp_path):
    card = json.loads((EMBEDDED / "card.json").read_text())
    (tmp_path / "card.json").write_text(json.dumps({**card, "files": {**card["files"], "heads": "heads.safetensors"}}))
    for part in ("target", "drafter", "tokenizer"):
        (tmp_path / f"{part}.safetensors").symlink_to(EMBEDDED / f"{part}.safetensors")
    assert lantern.load(tmp_path).models.parts == {}
    target = lantern.load("embedded").models.target
    save_model(tmp_path / "heads.safetensors", ShiftHeads.from_target(target, 3, seed=0))
    model = lantern.load(tmp_path)
    image = model.generate("a small red circle on grass", method="ssd", rounds=0)
    assert image.steps == 1 + 2 + 7  # the prompt, two parts of the first line, and seven lines


def test_a_draft_model_that_is_not_here_is_left_out_with_a_warning(tmp_path, caplog):
    (tmp_path / "card.json").write_text((EMBEDDED / "card.json").read_text())
    for part in ("target", "tokenizer"):
        (tmp_path / f"{part}.safetensors").symlink_to(EMBEDDED / f"{part}.safetensors")
    model = lantern.load(tmp_path)
    assert model.models.draft is None and "the drafter of" in caplog.text
    (tmp_path / "tokenizer.safetensors").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"not here; give their paths: drafter=\.\.\. .*, tokenizer=\.\.\. \(tok"
    ):
        lantern.load(tmp_path)
    assert lantern.load(tmp_path, tokenizer=EMBEDDED / "tokenizer.safetensors").models.draft is None


def test_a_hub_id_is_downloaded_into_the_hubs_cache_and_read_there_without_a_network(tmp_path, monkeypatch):
    card = CARDS["janus-pro-1b"]
    monkeypatch.setitem(CARDS, "janus-pro-1b", replace(card, images=replace(card.images, grid=4)))
    tiny, _ = make_tiny("janus")
    tiny.generation_config.do_sample = True
    tiny.save_pretrained(tmp_path / "model")
    save_tokenizer(tmp_path / "model" / "tokenizer.json", SPECIALS["janus"], ["a", "red", "cat", ":"])
    hub = HubServer()
    hub.add_repository("someone/tiny", {file.name: file.read_bytes() for file in (tmp_path / "model").iterdir()})
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{hub.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))

    def codes(is_offline):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", is_offline)
        close_session()  # the next session reads the constant
        return lantern.load("someone/tiny").generate("a red cat", temperature=0.0).codes

    expected = codes(is_offline=False)
    hub.close()
    found = codes(is_offline=True)
    close_session()
    assert found.shape == (1, 16) and torch.equal(found, expected)


def test_of_a_known_repository_only_the_files_of_its_card_are_fetched():
    """The repository of GLM-Image also holds a diffusion model, which is not downloaded."""
    assert loading._files_of_repository("zai-org/GLM-Image") is HUB_FILES["glm_image"]
    assert list(loading._files_of_repository("someone/else").files) == ["*.json", "*.safetensors"]


def test_shards_that_an_index_names_are_fetched_too(monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda repo, **options: calls.append(options) or tmp_path)
    files = HubFiles("x", "owner/name", {"config.json": None, "inner/model.safetensors.index.json": None}, "a" * 40)
    assert loading._fetch(files) == tmp_path
    assert loading._fetch(HubFiles("x", "owner/name", {"only.pt": None})) == tmp_path / "only.pt"
    patterns = calls[0]["allow_patterns"]
    assert calls[0]["revision"] == "a" * 40 and "inner/model-*.safetensors" in patterns and "config.json" in patterns
