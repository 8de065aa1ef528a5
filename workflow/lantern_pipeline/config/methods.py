"""Expansion of config entries into single methods, each with one value per parameter and its draft tree.

A config entry may have a list of values for a parameter. Then every combination of the values is one method.
Snakemake imports this module while it plans the jobs, so the module does not import torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lantern.method_tables import PRESETS, acceptance_of
from lantern.methods import MethodSpec
from lantern.parameters import PARAMETERS
from lantern.tree_shapes import (
    DynamicTreeOptions,
    TreeShape,
    dynamic_options,
    is_dynamic,
    joint_choices,
    name_dynamic,
    tree_choices,
)
from lantern_pipeline.measure.ablation_point import AblationPoint
from lantern_pipeline.measure.registry import CEILINGS

if TYPE_CHECKING:
    from lantern_pipeline.settings.run_config import Grid, RunConfig


@dataclass(frozen=True)
class MethodRun:
    """A method and a temperature at which it runs. Result tables have one row for each pair and each prompt set."""

    spec: MethodSpec
    temperature: float


def expand_methods(config: RunConfig) -> list[MethodRun]:
    """Return the methods of a run, each with its temperature, in config order.

    An entry with lists of values expands to every combination of them, at each temperature of the entry.

    Raises:
        ValueError: a value of an entry is not allowed, or two entries give the same method at the same temperature. The
            message names the config key.
    """
    return _expand_entries(config.methods, "methods", config)


def _expand_entries(entries: Sequence[dict[str, Any]], key: str, config: RunConfig) -> list[MethodRun]:
    """Expand a list of config entries into methods, each with its temperature, as `expand_methods` does.

    Args:
        entries: the entries. One entry may stand for several methods.
        key: config key of the list, for error messages.
        config: the checked config.

    Raises:
        ValueError: as in `expand_methods`.
    """
    runs: dict[tuple[str, float], MethodRun] = {}
    for position, entry in enumerate(entries):
        where = f"config key {key}[{position}]: "
        try:
            for run in _expand_entry(entry, config):
                run_key = (run.spec.method_id, run.temperature)
                if run_key in runs:
                    raise ValueError(
                        f"{run_key[0]} at temperature {run_key[1]:g} is listed twice; remove one or give it a name"
                    )
                runs[run_key] = run
        except ValueError as error:
            raise ValueError(where + str(error)) from error
    return list(runs.values())


def expand_ablations(config: RunConfig) -> dict[str, list[AblationPoint]]:
    """Return the points of each ablation. A point is a method with sampling settings and a draft model.

    Every combination of the values in the config is a point. Autoregressive decoding is added at each temperature and
    sampling setting, because the other points are compared with it.

    Returns:
        Name of the ablation -> its points.
    """
    return {name: _expand_ablation(name, grid, config) for name, grid in config.grids.items()}


def _expand_ablation(name: str, grid: Grid, config: RunConfig) -> list[AblationPoint]:
    runs = _expand_entries(grid.methods, f"ablations.grids.{name}.methods", config)
    baseline = MethodSpec("autoregressive", method_id="autoregressive")
    temperatures = dict.fromkeys(run.temperature for run in runs)
    drafted = [run for run in runs if run.spec.needs_draft_model]
    alone = [run for run in runs if run.spec.drafts is not None and not run.spec.needs_draft_model]
    points = []
    for changes in grid.sampling.combinations():
        sampling = {**config.sampling.model_dump(), **changes}
        points += [AblationPoint(baseline, temperature, sampling) for temperature in temperatures]
        points += [AblationPoint(run.spec, run.temperature, sampling) for run in alone]
        for steps in grid.drafter_steps:
            points += [AblationPoint(run.spec, run.temperature, sampling, steps) for run in drafted]
    return points


def _expand_entry(entry: dict[str, Any], config: RunConfig) -> Iterator[MethodRun]:
    preset = entry.get("preset")
    if isinstance(preset, list):
        for name in preset:
            yield from _expand_entry({**entry, "preset": name}, config)
        return
    if preset is not None and preset not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}")
    method_name = entry.get("name", preset)
    if method_name is None:
        raise ValueError("an entry without a preset needs a name and its parts (tree, drafts, acceptance)")
    defaults = {} if preset is None else PRESETS[preset]
    given = {key: value for key, value in entry.items() if key not in ("preset", "temperatures", "name")}
    lists = {key: value if isinstance(value, list) else [value] for key, value in (defaults | given).items()}
    for values in itertools.product(*lists.values()):
        parts: dict[str, Any] = dict(zip(lists, values, strict=True))
        if "k" in acceptance_of(parts.get("acceptance", "exact")).parameters:
            parts.setdefault("neighbours", config.codebook.neighbours)
        if parts.get("tree") == "static":
            parts["tree"] = config.draft_tree.static
        if parts.get("tree") == "dynamic":
            parts["tree"] = name_dynamic(DynamicTreeOptions(**config.draft_tree.dynamic.model_dump()))
        shape = _tree_shape(parts.get("tree"), config)
        spec = MethodSpec.of(method_name, tree_shape=shape, **parts)
        _check_name(spec)
        spec = replace(spec, method_id=_method_id(spec, given, defaults))
        for temperature in entry.get("temperatures", [1.0]):
            yield MethodRun(spec, float(temperature))


def _check_name(spec: MethodSpec) -> None:
    """Check that the name of a method is not reserved for other rows of the result tables.

    Raises:
        ValueError: the name is "real" or "reconstruction" (rows of images that no method generated), or it is
            "autoregressive" although the method has drafts.
    """
    if spec.name in CEILINGS:
        raise ValueError(f"name must not be {spec.name!r}, the tables' row of {spec.name} images; choose another name")
    if spec.name == "autoregressive" and spec.drafts is not None:
        raise ValueError(
            "name must not be 'autoregressive', the baseline of all tables, for a method with drafts "
            f"{spec.drafts}; choose another name"
        )


def _tree_shape(tree: str | None, config: RunConfig) -> TreeShape | None:
    """Return the shape of a draft tree, from its name in the config.

    Args:
        tree: name of the tree; None returns None. Names of two trees are joined by "+", as in "chain9+chain3".
        config: the checked config. It defines custom trees.
    """
    if tree is None:
        return None
    if "+" in tree:
        return joint_choices(tree, config.trees)
    if is_dynamic(tree):
        return dynamic_options(tree)
    return tree_choices(tree, config.trees)


def _method_id(spec: MethodSpec, given: dict[str, Any], defaults: dict[str, Any]) -> str:
    """Return the id of a method, such as "name-k20-delta0.1".

    The id begins with the name of the preset. It contains every part (tree, drafts, acceptance) and parameter that
    differs from the preset. A custom class appears by its class name.

    Args:
        spec: the method.
        given: parts (such as tree or drafts) and parameters in the config entry.
        defaults: parts and parameters of the preset; empty if the entry has no preset.
    """
    parts = {name: getattr(spec, name) for name in ("tree", "drafts", "acceptance", "residual", "neighbours")}
    departs = {
        name: value != defaults.get(name) if defaults else isinstance(given[name], list)
        for name, value in (parts | dict(spec.parameters)).items()
        if name in given
    }
    words = [str(value).replace("+", "_").split(":")[-1] for name, value in parts.items() if departs.get(name)]
    order = [*(name for name in PARAMETERS if name in spec.parameters), *sorted(spec.parameters.keys() - PARAMETERS)]
    for name in sorted(order, key=lambda name: isinstance(spec.parameters[name], int | float)):
        value = spec.parameters[name]
        if isinstance(value, str):
            words += [value] * departs.get(name, False)
        elif name in ("k", "delta", "lambda_") or value != defaults.get(name):
            words.append(f"{name.strip('_')}{value:g}")
    return "-".join([spec.name, *words])
