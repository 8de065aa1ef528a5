"""Configs of the workflow, merged and checked in the way that the Snakefile does it."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace

from jinja2 import Environment, StrictUndefined

from helpers.paths import ROOT
from lantern_pipeline.data.model_cards import card_sections, hub_entries
from lantern_pipeline.plan.validate import check_keys, load_yaml, validate_config
from lantern_pipeline.schema.run_config import RunConfig


def load_config(paths) -> dict:
    """Merge config files in the way that the workflow does it, and check the result.

    The order is: the defaults, the published settings of the model that the config names, then the given files.

    Args:
        paths: config files; later ones take precedence. The default config.yaml is always included.

    Raises:
        ValueError: the merged config is not valid.
    """
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
    """Return a config as the object that Snakemake rules read. Checks that relate several keys are left out."""
    return check_keys(copy.deepcopy(config))


def load_config_of_all_figures() -> dict:
    """Return a config that draws every figure.

    It is the default config, with the ablations of all files in experiments/ that have ablations, with Jacobi drafts in
    trees of three sizes, with the measurement of LANTERN's premise, and with a variant that has another grid.
    """
    config = load_config([ROOT / "config.yaml"])
    for overlay in ("ablations", "embedded_training"):
        more = load_config([ROOT / "config.yaml", ROOT / "experiments" / f"{overlay}.yaml"])
        config["ablations"]["grids"] |= more["ablations"]["grids"]
    config["methods"].append({"preset": "jacobi", "tree": ["chain3", "jacobi_50"]})
    config["premise"]["ks"] = [1, 10]
    config["variants"] = {"grid_12": {"tokenizer": {"grid": 12}}}
    return config


def render_caption(name, config, values, project=ROOT) -> str:
    """Render the caption of a figure as `snakemake --report` does, but raise an error for unknown names."""
    text = (project / "workflow" / "report" / "figures" / f"{name}.rst").read_text(encoding="utf-8")
    snakemake = SimpleNamespace(config=config, params=SimpleNamespace(caption=values))
    return Environment(undefined=StrictUndefined).from_string(text).render(snakemake=snakemake)
