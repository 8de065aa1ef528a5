"""Decoding methods as combinations of parts: tree x drafts x relaxation, with named presets and grids of parameters.

Read while Snakemake builds the workflow: no torch here.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

DRAFTS = ("sampled", "top", "coupled")
RELAXATIONS = ("none", "additive", "jensen_shannon", "multiplicative", "bounded", "proximity")
RESIDUALS = ("paper", "official", "official_lumina")
NEIGHBOURS = ("l2", "l2_normalised", "cosine", "probability", "random")

# Parts of each preset; "static" stands for the config's draft_tree.static. Source: reference/acceptance.md, last table.
PRESETS: dict[str, dict[str, Any]] = {
    "autoregressive": {"tree": None, "drafts": None, "relaxation": "none"},
    "eagle1": {"tree": "static", "drafts": "sampled", "relaxation": "none"},
    "eagle2": {"tree": "dynamic", "drafts": "top", "relaxation": "none"},
    "lantern": {"tree": "dynamic", "drafts": "top", "relaxation": "additive"},
    "lantern_pp": {"tree": "static", "drafts": "sampled", "relaxation": "multiplicative"},
    "coupled": {"tree": "static", "drafts": "coupled", "relaxation": "none"},
    "proximity": {"tree": "static", "drafts": "coupled", "relaxation": "proximity"},
    "bounded": {"tree": "dynamic", "drafts": "top", "relaxation": "bounded"},
}
# Which parameters a relaxation takes; the others must not be given.
PARAMETERS = {
    "none": (),
    "additive": ("k", "delta"),
    "jensen_shannon": ("k", "delta"),
    "multiplicative": ("k", "lambda_"),
    "bounded": ("k", "delta"),
    "proximity": ("k",),
}


@dataclass(frozen=True)
class MethodSpec:
    """One decoding method with its parameters.

    Attributes:
        name: preset or a name of the config's choice.
        tree: "dynamic", or the name of a static tree; None for autoregressive decoding.
        drafts: "sampled", "top" or "coupled"; None for autoregressive decoding.
        relaxation: "none", "additive", "jensen_shannon", "multiplicative", "bounded" or "proximity".
        residual: "paper", or what the authors' code does: "official" for LlamaGen, "official_lumina".
        neighbours: which nearest codes, one of NEIGHBOURS; None without relaxation.
        k: nearest codes; None without relaxation.
        delta: additive bound or budget, probability mass in [0, 1], or Jensen-Shannon bound in bits; None elsewhere.
        lambda_: multiplicative bound, >= 1; None elsewhere.
        method_id: unique within a config, safe as a file name.

    Raises:
        ValueError: parts that do not go together, a parameter missing, foreign or out of range.
    """

    name: str
    tree: str | None = None
    drafts: str | None = None
    relaxation: str = "none"
    residual: str = "paper"
    neighbours: str | None = None
    k: int | None = None
    delta: float | None = None
    lambda_: float | None = None
    method_id: str = ""

    def __post_init__(self) -> None:
        _check_parts(self)
        _check_parameters(self)

    @property
    def is_relaxed(self) -> bool:
        """Whether the law may depart from the target's."""
        return self.relaxation != "none"

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class MethodRun:
    """A method at a temperature: one line of the table per prompt set."""

    spec: MethodSpec
    temperature: float


@dataclass(frozen=True)
class AblationPoint:
    """A method under changed circumstances: one line of an ablation's table.

    Attributes:
        spec: the method.
        temperature: of sampling.
        sampling: the run's config section `sampling` with this point's changes.
        drafter_steps: optimiser steps of the draft model; None for the run's own.
    """

    spec: MethodSpec
    temperature: float
    sampling: dict[str, Any]
    drafter_steps: int | None = None


def _check_parts(spec: MethodSpec) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", spec.name):
        raise ValueError(f"a method's name must be lower-case letters, digits and _, got {spec.name!r}")
    for field, known in (("relaxation", RELAXATIONS), ("residual", RESIDUALS)):
        if getattr(spec, field) not in known:
            raise ValueError(f"{field} of {spec.name} must be one of {', '.join(known)}, got {getattr(spec, field)!r}")
    if (spec.tree is None) != (spec.drafts is None):
        raise ValueError(f"method {spec.name} must have both tree and drafts, or neither (autoregressive)")
    if spec.drafts is None:
        if spec.is_relaxed:
            raise ValueError(f"method {spec.name} relaxes drafts but has none; set tree and drafts")
        return
    _check_drafts(spec)


def _check_drafts(spec: MethodSpec) -> None:
    if spec.drafts not in DRAFTS:
        raise ValueError(f"drafts of {spec.name} must be one of {', '.join(DRAFTS)}, got {spec.drafts!r}")
    if spec.drafts == "sampled" and spec.tree == "dynamic":
        raise ValueError(
            f"sampled drafts need a static tree, got tree dynamic for {spec.name}; use top or coupled drafts"
        )
    if spec.relaxation == "bounded" and spec.drafts != "top":
        raise ValueError(
            f"relaxation budget needs drafts top, got {spec.drafts} for {spec.name}; only there delta bounds TV"
        )
    if spec.relaxation == "proximity" and spec.drafts == "sampled":
        raise ValueError(f"relaxation proximity needs drafts coupled or top, got sampled for {spec.name}")
    if spec.residual != "paper" and (spec.drafts == "coupled" or spec.relaxation in ("bounded", "proximity")):
        raise ValueError(
            f"residual {spec.residual} is the authors' code, which has no such method as {spec.name}; use paper"
        )


def _check_parameters(spec: MethodSpec) -> None:
    wanted = PARAMETERS[spec.relaxation]
    for name in ("k", "delta", "lambda_"):
        value = getattr(spec, name)
        if name in wanted and value is None:
            raise ValueError(f"method {spec.name} with relaxation {spec.relaxation} needs {name}")
        if name not in wanted and value is not None:
            raise ValueError(f"method {spec.name} with relaxation {spec.relaxation} takes no {name}, got {value}")
    if spec.k is not None and (spec.k != int(spec.k) or spec.k < 1):
        raise ValueError(
            f"k of {spec.name} must be a whole number >= 1, got {spec.k}; for exact decoding use relaxation none"
        )
    if spec.delta is not None and not 0 <= spec.delta <= 1:
        raise ValueError(
            f"delta of {spec.name} must be in [0, 1], got {spec.delta}; for the multiplicative bound set lambda_"
        )
    if spec.lambda_ is not None and spec.lambda_ < 1:
        raise ValueError(f"lambda_ of {spec.name} must be >= 1, got {spec.lambda_}; for the additive bound set delta")
    if spec.is_relaxed and spec.neighbours not in NEIGHBOURS:
        raise ValueError(f"neighbours of {spec.name} must be one of {', '.join(NEIGHBOURS)}, got {spec.neighbours!r}")


def expand_methods(config: dict[str, Any], key: str = "methods") -> list[MethodRun]:
    """Expands the config's methods: every combination of an entry's lists is a method.

    Args:
        config: the whole configuration; reads `methods`, `draft_tree.static`, `trees` and `codebook.neighbours`.
        key: where these methods stand in the user's config, for error messages.

    Returns:
        One `MethodRun` per method and temperature, in the order of the config.

    Raises:
        ValueError: an unknown preset or tree (the known ones are listed), a bad parameter, or a method listed twice.
    """
    static_names = {*config.get("trees", {}), "naive_extend_57", "mc_sim_7b_63"}
    runs: dict[tuple[str, float], MethodRun] = {}
    for position, entry in enumerate(config["methods"]):
        where = f"config key {key}[{position}]: "
        try:
            for run in _expand_entry(entry, config, static_names):
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
    """Expands the config's ablations: methods x sampling settings x drafters.

    Autoregressive decoding is added wherever it is missing: every point is compared with it under the same settings.

    Args:
        config: the whole configuration; reads `ablations.grids`, `sampling` and what `expand_methods` reads.

    Returns:
        Name of the ablation -> its points; ablations that are null in the config are left out.

    Raises:
        ValueError: as `expand_methods`, with the ablation's key.
    """
    return {name: _expand_ablation(name, grid, config) for name, grid in config["ablations"]["grids"].items() if grid}


def _expand_ablation(name: str, grid: dict[str, Any], config: dict[str, Any]) -> list[AblationPoint]:
    runs = expand_methods({**config, "methods": grid["methods"]}, f"ablations.grids.{name}.methods")
    baseline = MethodSpec(**PRESETS["autoregressive"], name="autoregressive", method_id="autoregressive")
    temperatures = dict.fromkeys(run.temperature for run in runs)
    drafted = [run for run in runs if run.spec.drafts is not None]
    changes = {key: value if isinstance(value, list) else [value] for key, value in grid.get("sampling", {}).items()}
    points = []
    for values in itertools.product(*changes.values()):
        sampling = {**config["sampling"], **dict(zip(changes, values, strict=True))}
        points += [AblationPoint(baseline, temperature, sampling) for temperature in temperatures]
        for steps in grid.get("drafter_steps", [None]):
            points += [AblationPoint(run.spec, run.temperature, sampling, steps) for run in drafted]
    return points


def _expand_entry(entry: dict[str, Any], config: dict[str, Any], static_names: set[str]) -> Iterator[MethodRun]:
    preset = entry.get("preset")
    if isinstance(preset, list):
        for name in preset:
            yield from _expand_entry({**entry, "preset": name}, config, static_names)
        return
    if preset is not None and preset not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}")
    if preset is None and "name" not in entry:
        raise ValueError("an entry without a preset needs a name and its parts (tree, drafts, relaxation)")
    parts = dict(PRESETS[preset]) if preset else {}
    given = {key: value for key, value in entry.items() if key not in ("preset", "temperatures", "name")}
    parts |= given
    if parts.get("relaxation", "none") != "none":
        parts.setdefault("neighbours", config["codebook"].get("neighbours", "l2_normalised"))
    lists = {key: value if isinstance(value, list) else [value] for key, value in parts.items()}
    defaults = PRESETS.get(preset, {})
    for values in itertools.product(*lists.values()):
        fields = dict(zip(lists, values, strict=True))
        if fields.get("tree") == "static":
            fields["tree"] = config["draft_tree"]["static"]
        _check_tree(fields.get("tree"), static_names)
        spec = MethodSpec(name=entry.get("name", preset), **fields)
        spec = replace(spec, method_id=_method_id(spec, given, defaults))
        for temperature in entry.get("temperatures", [1.0]):
            yield MethodRun(spec, float(temperature))


def _check_tree(tree: str | None, static_names: set[str]) -> None:
    is_known = tree is None or tree == "dynamic" or tree in static_names or re.fullmatch(r"chain[1-9]\d*", str(tree))
    if not is_known:
        known = ["dynamic", "chain1, chain2, ...", *sorted(static_names)]
        raise ValueError(f"tree must be one of {', '.join(known)}, or a name listed under trees, got {tree!r}")


def _method_id(spec: MethodSpec, given: dict[str, Any], defaults: dict[str, Any]) -> str:
    """name-k20-delta0.1, with every part that departs from the preset spelt out."""
    words = [spec.name]
    for field in ("tree", "drafts", "relaxation", "residual", "neighbours"):
        departs = getattr(spec, field) != defaults.get(field) if defaults else isinstance(given.get(field), list)
        if field in given and departs:
            words.append(f"{getattr(spec, field)}")
    if spec.k is not None:
        words.append(f"k{int(spec.k)}")
    if spec.delta is not None:
        words.append(f"delta{spec.delta:g}")
    if spec.lambda_ is not None:
        words.append(f"lambda{spec.lambda_:g}")
    return "-".join(words)
