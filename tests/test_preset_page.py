"""Tests of the site's page of all presets: its code runs, and every preset has its tree, acceptance and paper."""

import re

import preset_page
import pytest
import torch

import lantern
from lantern.registry import PRESETS
from lantern.tree_shapes import tree_choices


@pytest.fixture(scope="module")
def model():
    return lantern.load("embedded")


@pytest.fixture(scope="module")
def page(model):
    return preset_page.preset_page(model)


@pytest.mark.slow
def test_every_preset_has_a_section_with_code_that_runs(page, model, monkeypatch):
    """All sections share one model, since loading it takes longer than an image."""
    monkeypatch.setattr(lantern, "load", {"embedded": model}.__getitem__)
    text, _ = page
    sections = re.split(r"^## ", text, flags=re.M)[1:]
    for name, section in zip(preset_page.SHOWN, sections, strict=True):
        (code,) = re.findall(r"```python\n(.*?)```", section, re.S)
        names = {}
        exec(code, names)
        assert names["images"].records.metadata["method"]["method_id"] == name
        assert f"- Preset `{name}`" in section


@pytest.mark.slow
def test_every_preset_has_a_section_a_source_and_its_drafts_a_tree(page):
    text, pictures = page
    assert re.findall(r"^## (.*)", text, re.M) == [row.label for row in preset_page.SHOWN.values()]
    with_tree = [name for name, row in PRESETS.items() if "tree" in row.parts]
    assert list(pictures) == [f"tree_{name}.svg" for name in with_tree]
    assert all(f"]({picture})" in text and "<svg" in content for picture, content in pictures.items())
    sources = re.findall(r"^- Source: (.*)$", text, re.M)
    assert len(sources) == len(preset_page.SHOWN) - 1  # autoregressive decoding has none
    assert all("(https://arxiv.org/abs/" in source or "ours" in source for source in sources)


@pytest.mark.parametrize("name", ["jacobi", "sjd_pac", "path_relax", "eagle1"])
def test_the_tree_of_a_step_is_the_one_that_the_preset_names(name, model):
    decoder = model.make_decoder(name)
    tree = preset_page.first_tree(model, decoder)
    assert preset_page.choices_of(tree) == tree_choices(decoder.spec.tree)


def test_a_dynamic_tree_has_the_drafts_that_its_options_state(model):
    tree = preset_page.first_tree(model, model.make_decoder("eagle2"))
    assert len(preset_page.choices_of(tree)) == model.parts["dynamic"]["num_nodes"]
    assert tree.ranks.dtype == torch.int64
