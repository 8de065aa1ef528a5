"""Expansion of config entries into single methods, each with one value per parameter and its draft tree.

An entry with lists of values stands for every combination of them, at each temperature of the entry.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from lantern.methods import MethodSpec
from lantern.parameters import PARAMETERS
from lantern.registry import acceptance_of, preset_of
from lantern.tree_shapes import (
    DynamicTreeOptions,
    named_shape,
)
from lantern_pipeline.measure.registry import CEILINGS
from lantern_pipeline.schema.methods import AblationPoint

if TYPE_CHECKING:
    from lantern_pipeline.schema.run_config import Grid, RunConfig

_PARTS = ("tree", "drafts", "acceptance", "residual", "neighbours")


@dataclass(frozen=True)
class MethodRun:
    """A method and a temperature at which it runs. Result tables have one row for each pair and each prompt set."""

    spec: MethodSpec
    temperature: float


class Expansion(NamedTuple):
    """The methods of a config: `runs` of config key `methods`, and the points of each ablation, by its name."""

    runs: list[MethodRun]
    ablations: dict[str, list[AblationPoint]]


def expand(config: RunConfig) -> Expansion:
    """Return all methods of a config. A plan does so once, as each method is checked when it is made."""
    return Expansion(expand_methods(config), expand_ablations(config))


def expand_methods(config: RunConfig) -> list[MethodRun]:
    """Return the entries of config key `methods` as single methods, in config order."""
    return _expand_entries(config.methods, "methods", config)


def _expand_entries(entries: Sequence[dict[str, Any]], key: str, config: RunConfig) -> list[MethodRun]:
    # `key` is the config key of the entries, for error messages.
    # Method id and temperature determine a row of the tables and the names of files, so they must be unique.
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
    """Return the points of each ablation, by its name: every combination of the values in the config."""
    return {name: _expand_ablation(name, grid, config) for name, grid in config.grids.items()}


def _expand_ablation(name: str, grid: Grid, config: RunConfig) -> list[AblationPoint]:
    runs = _expand_entries(grid.methods, f"ablations.grids.{name}.methods", config)
    # All other points are compared with it, at the same temperature and sampling settings.
    baseline = MethodSpec("autoregressive", method_id="autoregressive")
    temperatures = dict.fromkeys(run.temperature for run in runs)
    drafted = [run for run in runs if run.spec.needs_draft_model]
    # The training steps of the draft model do not change these methods, so each is one point.
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
    # Each preset has its own parts, which the lists of the entry then override.
    if isinstance(preset, list):
        for name in preset:
            yield from _expand_entry({**entry, "preset": name}, config)
        return
    defaults = {} if preset is None else preset_of(preset)
    method_name = entry.get("name", preset)
    if method_name is None:
        raise ValueError("an entry without a preset needs a name and its parts (tree, drafts, acceptance)")
    given = {key: value for key, value in entry.items() if key not in ("preset", "temperatures", "name")}
    lists = {key: value if isinstance(value, list) else [value] for key, value in {**defaults, **given}.items()}
    # Keys of the preset come first, then the others in the order of the entry. The last one varies fastest.
    for values in itertools.product(*lists.values()):
        parts: dict[str, Any] = dict(zip(lists, values, strict=True))
        # an acceptance with a parameter k reads a table of nearest codes
        if "k" in acceptance_of(parts.get("acceptance", "exact")).parameters:
            parts.setdefault("neighbours", config.codebook.neighbours)
        # The names "static" and "dynamic" stand for trees of the config. Method ids and tables have the real names.
        if parts.get("tree") == "static":
            parts["tree"] = config.draft_tree.static
        if parts.get("tree") == "dynamic":
            size = DynamicTreeOptions(**config.draft_tree.dynamic.model_dump())
            parts["tree"] = f"dynamic{size.num_nodes}k{size.top_k}d{size.depth}"
        tree = parts.get("tree")
        shape = None if tree is None else named_shape(tree, config.trees)
        method_id = _method_id(method_name, parts, given, defaults)
        spec = MethodSpec.of(method_name, tree_shape=shape, method_id=method_id, **parts)
        _check_name(spec)
        for temperature in entry.get("temperatures", [1.0]):
            yield MethodRun(spec, float(temperature))


def _check_name(spec: MethodSpec) -> None:
    """Raise a ValueError if the name of a method is reserved for other rows of the result tables."""
    if spec.name in CEILINGS:
        raise ValueError(f"name must not be {spec.name!r}, the tables' row of {spec.name} images; choose another name")
    if spec.name == "autoregressive" and spec.drafts is not None:
        raise ValueError(
            "name must not be 'autoregressive', the baseline of all tables, for a method with drafts "
            f"{spec.drafts}; choose another name"
        )


def _method_id(
    method_name: str, parts: Mapping[str, Any], given: Mapping[str, Any], defaults: Mapping[str, Any]
) -> str:
    """Return the id of a method: its name, then what differs from the preset, as in "lantern-k20-delta0.1"."""
    # Without a preset, the user's name stands for the parts, and only those with a list of values are added.
    departs = {name: parts[name] != defaults.get(name) if defaults else isinstance(given[name], list) for name in given}
    # The "+" of a joint tree becomes "_". A custom class "module:Class" appears as "Class".
    words = [str(parts[name]).replace("+", "_").split(":")[-1] for name in _PARTS if departs.get(name)]
    # Words come before numbers, and both in the order of PARAMETERS, however the user orders the keys. Parameters of a
    # custom class follow those, in alphabetical order.
    parameters = {name: value for name, value in parts.items() if name not in _PARTS and value is not None}
    order = [*(name for name in PARAMETERS if name in parameters), *sorted(parameters.keys() - PARAMETERS)]
    for name in sorted(order, key=lambda name: isinstance(parameters[name], int | float)):
        value = parameters[name]
        if not isinstance(value, int | float):
            words += [str(value)] * departs.get(name, False)
        # these three even with the preset's values
        elif name in ("k", "delta", "lambda_") or value != defaults.get(name):
            words.append(f"{name.strip('_')}{value:g}")  # lambda_ has its underscore because Python reserves the word
    return "-".join([method_name, *words])
