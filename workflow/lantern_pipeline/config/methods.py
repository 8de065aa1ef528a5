"""The config's methods and ablations, expanded from their grids; each carries the shape of its tree.

Read while Snakemake builds the workflow: no torch here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from lantern.methods import PEER_PARAMETERS, PRESETS, SJD_PARTS, MethodSpec, takes_neighbours
from lantern.tree_shapes import joint_choices, tree_choices


@dataclass(frozen=True)
class MethodRun:
    """A method at a temperature: one line of the table per prompt set."""

    spec: MethodSpec
    temperature: float


@dataclass(frozen=True)
class AblationPoint:
    """A method under changed circumstances: one line of an ablation's table.

    `sampling` is the run's config section with this point's changes. `target_steps` None is the run's own target, a
    number the one that it was after so many optimiser steps; `drafter_steps` None is a draft model of as many steps as
    the run's own.
    """

    spec: MethodSpec
    temperature: float
    sampling: dict[str, Any]
    drafter_steps: int | None = None
    target_steps: int | None = None


def expand_methods(config: dict[str, Any], key: str = "methods") -> list[MethodRun]:
    """Expands the config's methods in their order: every combination of an entry's lists is a method, at each of its
    temperatures; `key` says where they stand in the user's config.
    """
    runs: dict[tuple[str, float], MethodRun] = {}
    for position, entry in enumerate(config["methods"]):
        where = f"config key {key}[{position}]: "
        try:
            for run in _expand_entry(entry, config):
                place = (run.spec.method_id, run.temperature)
                if place in runs:
                    raise ValueError(
                        f"{place[0]} at temperature {place[1]:g} is listed twice; remove one or give it a name"
                    )
                runs[place] = run
        except ValueError as error:
            raise ValueError(where + str(error)) from error
    return list(runs.values())


def expand_ablations(config: dict[str, Any]) -> dict[str, list[AblationPoint]]:
    """Expands the config's ablations that are not null: methods x sampling settings x targets x drafters.

    Autoregressive decoding is added wherever it is missing: every point is compared with it under the same settings.
    """
    return {name: _expand_ablation(name, grid, config) for name, grid in config["ablations"]["grids"].items() if grid}


def _expand_ablation(name: str, grid: dict[str, Any], config: dict[str, Any]) -> list[AblationPoint]:
    runs = expand_methods({**config, "methods": grid["methods"]}, f"ablations.grids.{name}.methods")
    baseline = MethodSpec(**PRESETS["autoregressive"], name="autoregressive", method_id="autoregressive")
    temperatures = dict.fromkeys(run.temperature for run in runs)
    if any(run.spec.tree == "tuned" for run in runs):
        raise ValueError(
            f"config key ablations.grids.{name}.methods: tree tuned is chosen for config key methods alone, under the "
            "run's own settings; name another tree"
        )
    drafted = [run for run in runs if run.spec.needs_draft_model]
    alone = [run for run in runs if run.spec.drafts is not None and not run.spec.needs_draft_model]
    changes = {key: value if isinstance(value, list) else [value] for key, value in grid.get("sampling", {}).items()}
    points = []
    for *values, target in itertools.product(*changes.values(), grid.get("target_steps", [None])):
        sampling = {**config["sampling"], **dict(zip(changes, values, strict=True))}
        points += [AblationPoint(baseline, temperature, sampling, None, target) for temperature in temperatures]
        points += [AblationPoint(run.spec, run.temperature, sampling, None, target) for run in alone]
        for steps in grid.get("drafter_steps", [None]):
            points += [AblationPoint(run.spec, run.temperature, sampling, steps, target) for run in drafted]
    return points


def _expand_entry(entry: dict[str, Any], config: dict[str, Any]) -> Iterator[MethodRun]:
    preset = entry.get("preset")
    if isinstance(preset, list):
        for name in preset:
            yield from _expand_entry({**entry, "preset": name}, config)
        return
    if preset is not None and preset not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}")
    if preset is None and "name" not in entry:
        raise ValueError("an entry without a preset needs a name and its parts (tree, drafts, relaxation)")
    parts = dict(PRESETS[preset]) if preset else {}
    given = {key: value for key, value in entry.items() if key not in ("preset", "temperatures", "name")}
    parts |= given
    lists = {key: value if isinstance(value, list) else [value] for key, value in parts.items()}
    if any(map(takes_neighbours, lists.get("relaxation", []))):
        lists.setdefault("neighbours", [config["codebook"].get("neighbours", "l2_normalised")])
    defaults = PRESETS.get(preset, {})
    for values in itertools.product(*lists.values()):
        fields = dict(zip(lists, values, strict=True))
        if fields.get("tree") == "static":
            fields["tree"] = config["draft_tree"]["static"]
        shape = _tree_shape(fields.get("tree"), fields.get("drafts"), config)
        spec = MethodSpec(name=entry.get("name", preset), tree_shape=shape, **fields)
        spec = replace(spec, method_id=_method_id(spec, given, defaults))
        for temperature in entry.get("temperatures", [1.0]):
            yield MethodRun(spec, float(temperature))


def _tree_shape(tree: str | None, drafts: str | None, config: dict[str, Any]) -> Any:
    """What a tree's name stands for in this config; None for a tree that the run itself chooses."""
    if tree in (None, "tuned"):
        return None
    if drafts == "hybrid":
        return joint_choices(str(tree), config["trees"])
    return config["draft_tree"]["dynamic"] if tree == "dynamic" else tree_choices(str(tree), config["trees"])


def _method_id(spec: MethodSpec, given: dict[str, Any], defaults: dict[str, Any]) -> str:
    """name-k20-delta0.1, with every part that departs from the preset spelt out."""
    words = [spec.name]
    for field in ("tree", "drafts", "relaxation", "residual", "neighbours", *SJD_PARTS):
        departs = getattr(spec, field) != defaults.get(field) if defaults else isinstance(given.get(field), list)
        if field in given and departs:
            words.append(getattr(spec, field).replace("+", "_"))
    if spec.k is not None:
        words.append(f"k{int(spec.k)}")
    if spec.delta is not None:
        words.append(f"delta{spec.delta:g}")
    if spec.lambda_ is not None:
        words.append(f"lambda{spec.lambda_:g}")
    for field in PEER_PARAMETERS:
        if field in given and getattr(spec, field) != defaults.get(field):
            words.append(f"{field}{getattr(spec, field):g}")
    return "-".join(words)


def table_file(neighbours: str, training_seed: int | str) -> str:
    """Names the file of a table of nearest codes; only the one by probability depends on the target and its seed."""
    return f"{neighbours}.s{training_seed}.safetensors" if neighbours == "probability" else f"{neighbours}.safetensors"
