"""Tests that the table of figures fits the drawing functions."""

import copy
import inspect
from importlib import import_module
from string import ascii_lowercase

import pytest

from helpers.configs import load_config_of_all_figures, typed_config
from helpers.paths import ROOT
from lantern_pipeline.fetch.entries import parse_entries
from lantern_pipeline.plan.figures import figure_table
from lantern_pipeline.plan.methods import expand
from lantern_pipeline.plan.paths import RunPlan

DEFAULT = load_config_of_all_figures()


def table_of(config):
    checked = typed_config(config)
    return figure_table(RunPlan(checked, parse_entries(checked.resource_entries), expand(checked)))


FIGURES = table_of(DEFAULT)


def test_letters_and_titles_tell_the_figures_apart():
    letters = [figure.letter for figure in FIGURES.values()]
    assert letters == sorted(set(letters)) and set(letters) <= set(ascii_lowercase)
    assert len({figure.title for figure in FIGURES.values()}) == len(FIGURES)


def test_every_figure_has_a_caption():
    captions = (ROOT / "workflow" / "report" / "figures").iterdir()
    assert {path.stem for path in captions if path.read_text().startswith("**")} == set(FIGURES)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_has_a_function_that_takes_its_files_and_settings(name):
    figure = FIGURES[name]
    draw = getattr(import_module(f"lantern_pipeline.figures.{name}"), f"draw_{name}")
    parameters = inspect.signature(draw).parameters.values()
    wanted = {parameter.name for parameter in parameters if parameter.default is parameter.empty}
    assert wanted == {*figure.files, *figure.settings}


def test_what_is_off_has_no_figure():
    config = copy.deepcopy(DEFAULT)
    config["ablations"]["grids"] = dict.fromkeys(config["ablations"]["grids"])
    config["methods"] = [{"preset": "autoregressive"}]
    config["premise"]["ks"] = config["variants"] = None
    off = {"ablations", "total_variation", "nodes", "premise", "generality", "grid_sizes"}
    assert set(FIGURES) - set(table_of(config)) == off


def test_a_line_over_grids_needs_a_grid_of_every_variant():
    config = copy.deepcopy(DEFAULT)
    grid, codes = {"tokenizer": {"grid": 12}}, {"tokenizer": {"codebook_size": 64}}
    for variants in ({}, {"a": grid, "b": codes}, {"a": {"seed": 1}}):
        config["variants"] = variants
        assert "grid_sizes" not in table_of(config)
    assert "grid_sizes" in FIGURES


def test_a_curve_over_nodes_needs_trees_of_three_sizes():
    config = copy.deepcopy(DEFAULT)
    config["methods"] = [{"preset": ["autoregressive", "jacobi"]}, {"preset": "jacobi", "tree": "jacobi_50"}]
    assert "nodes" not in table_of(config)
    config["methods"].append({"preset": "jacobi", "tree": "chain3"})
    assert "nodes" in table_of(config)
