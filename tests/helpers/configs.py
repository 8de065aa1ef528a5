"""Configs of the workflow, read and checked as it does."""

from __future__ import annotations

import copy
from pathlib import Path

from helpers.paths import ROOT
from lantern_pipeline.config.validate import check_keys, load_yaml, validate_config
from lantern_pipeline.data.model_cards import card_sections, hub_entries
from lantern_pipeline.settings.run_config import RunConfig


def load_config(paths) -> dict:
    """Merge config files as the workflow does, and check the result: defaults, the model's card, then overlays."""
    from snakemake.utils import update_config

    given, defaults = {}, ROOT / "config.yaml"
    for path in paths:
        if Path(path) != defaults:
            update_config(given, load_yaml(path))
    config = load_yaml(defaults)
    update_config(config, load_yaml(ROOT / "workflow" / "resources.yaml"))
    update_config(config, {**card_sections(given.get("model")), "resources": hub_entries()})
    update_config(config, given)
    validate_config(config)
    return config


def typed_config(config: dict) -> RunConfig:
    """Return a config as rules get it, without the rules between its keys."""
    return check_keys(copy.deepcopy(config))


def load_config_of_all_figures() -> dict:
    """The default config with the ablations of all overlays that have some, and trees of many sizes."""
    config = load_config([ROOT / "config.yaml"])
    for overlay in ("ablations", "embedded_training"):
        more = load_config([ROOT / "config.yaml", ROOT / "experiments" / f"{overlay}.yaml"])
        config["ablations"]["grids"] |= more["ablations"]["grids"]
    config["methods"].append({"preset": "jacobi", "tree": ["chain3", "jacobi_50"]})
    return config
