"""Tests of the model cards beside the shipped weights."""

import re
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from helpers.paths import ROOT
from lantern.io import read_json

FOLDERS = sorted((ROOT / "models").iterdir())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_model_card_is_read_by_the_hub_and_states_the_licence_of_the_weights(folder):
    card = ModelCard.load(folder / "README.md")
    assert card.data.license == read_json(folder / "card.json")["licence"].lower()
    assert card.data.pipeline_tag == "text-to-image"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_table_of_files_states_what_the_training_wrote(folder: Path):
    rows = re.findall(
        r"^\| `(\S+)` \| ([\d,]+) \| ([\d.]+) \| ([\d,]+) \| ([\d.]+) \| `(\w+)` \|$",
        (folder / "README.md").read_text(),
        re.M,
    )
    stated = {
        name: (int(numbers.replace(",", "")), int(steps.replace(",", "")), digest)
        for name, numbers, _, steps, _, digest in rows
    }
    trained = read_json(folder / "training.json")["models"].values()
    assert stated == {
        model["file"]: (model["num_parameters"], model["num_steps"], model["sha256"]) for model in trained
    }
