"""Decoding methods: a drafter, an acceptance and their parameters, checked against each other.

`lantern.registry` declares the parts and the presets.

Snakemake imports this module to plan the workflow, so it must not import torch.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from lantern.extensions import import_object
from lantern.parameters import PARAMETERS, ParameterValue
from lantern.registry import (
    NEEDS,
    NEIGHBOURS,
    RESIDUALS,
    AcceptanceRow,
    DraftsRow,
    acceptance_of,
    drafts_for,
    drafts_of,
    preset_of,
)
from lantern.tree_shapes import (
    Choices,
    DynamicTreeOptions,
    JointTree,
    TreeShape,
    is_dynamic,
    named_shape,
)


@dataclass(frozen=True)
class MethodSpec:
    """A decoding method. `spec["k"]` is the value of its parameter k.

    Attributes:
        name: name of a preset, or any other name.
        tree: the name of a static tree, or of a dynamic one: "dynamic", or with its size "dynamic58k10d4". For hybrid
            drafts two names, first of the tree for Jacobi drafts, then of the tree for the draft model, as in
            "chain9+chain3". None if the drafter takes no tree.
        drafts: key of DRAFTS, or "module:Class". None for autoregressive decoding.
        acceptance: key of ACCEPTANCE, or "module:Class".
        residual: key of RESIDUALS, the distribution that replaces the target's after a draft is rejected. "paper" is
            the one in the papers. "official" (LlamaGen) and "official_lumina" (Lumina-mGPT) are those of LANTERN's
            public code. "matched" is the one that brings the output as close to the target's distribution as the
            acceptance allows.
        neighbours: distance that defines nearest codes, one of NEIGHBOURS. None if the acceptance has no parameter k.
        parameters: values of the parameters that the parts declare, by name.
        method_id: identifier, unique within a config and safe as a file name.
        tree_shape: paths of a static tree, or options of a dynamic one, also as JSON values. By default the shape of
            the tree that `tree` names. None without a tree.
        code: checksum of the files of classes outside Lantern's packages. If one is edited, images are generated again.

    Raises:
        ValueError: the parts do not fit each other, a parameter is missing, unknown or out of range, or the tree is
            unknown.
    """

    name: str
    tree: str | None = None
    drafts: str | None = None
    acceptance: str = "exact"
    residual: str = "paper"
    neighbours: str | None = None
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict, hash=False)  # a dict cannot be hashed
    method_id: str = ""
    tree_shape: TreeShape | Mapping[str, Any] | Sequence[Sequence[int]] | None = field(default=None, hash=False)
    code: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise ValueError(f"a method's name must be lower-case letters, digits and _, got {self.name!r}")
        for part in ("tree", "residual", "neighbours", "method_id"):
            if not isinstance(getattr(self, part), str | None):
                raise ValueError(f"{part} of {self.name} must be a name, got {getattr(self, part)!r}")
        # The dataclass is frozen, hence object.__setattr__. Parts come first: they declare the parameters.
        _check_parts(self)
        object.__setattr__(self, "parameters", {**self.parameters, **_checked_parameters(self)})
        object.__setattr__(self, "tree_shape", _shape_of(self))
        object.__setattr__(self, "code", _code_of(self))
        if "chain" in self.acceptance_row.needs and not is_chain(self.tree_shape):
            raise ValueError(
                f"acceptance {self.acceptance} needs a chain, got tree {self.tree} for {self.name}; name one, as in "
                "chain3"
            )

    @classmethod
    def of(cls, name: str, **parts: Any) -> MethodSpec:
        """Make a method from its parts and parameters, all passed as keyword arguments.

        Args:
            parts: attributes of `MethodSpec`, and parameters such as k=100. If the method reads a table of nearest
                codes, `neighbours` is "l2_normalised" by default.
        """
        taken = {part.name for part in fields(cls)} - {"name", "parameters"}
        known = {key: value for key, value in parts.items() if key in taken}
        # Parameters of custom classes, or unknown ones, which `_checked_parameters` refuses.
        others = [name for name in parts if name not in PARAMETERS and name not in known]
        # In the order of PARAMETERS, whatever that of the arguments.
        parameters = {name: parts[name] for name in (*PARAMETERS, *others) if parts.get(name) is not None}
        if "k" in acceptance_of(known.get("acceptance", "exact")).parameters:
            known.setdefault("neighbours", "l2_normalised")
        return cls(name, parameters=parameters, **known)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], tree_shape: Any = None) -> MethodSpec:
        """Return the method of which `to_dict` returned `values`.

        Args:
            tree_shape: shape of its tree, as in `MethodSpec`. Without it, a static tree has no paths: such a method
                says what it keeps and reads, but cannot decode.
        """
        if tree_shape is None and not is_dynamic(values.get("tree") or ""):
            tree_shape = ()  # only a config may know the paths that the name stands for
        return cls.of(tree_shape=tree_shape, **{key: value for key, value in values.items() if key != "is_exact"})

    def __getitem__(self, name: str) -> Any:
        return self.parameters[name]

    def get(self, name: str) -> Any | None:
        """Return the value of a parameter, or None if the method has no such parameter."""
        return self.parameters.get(name)

    @property
    def label(self) -> str:
        """The name of the method in messages: `method_id`, or `name` if that is empty."""
        return self.method_id or self.name

    @property
    def static_choices(self) -> Choices:
        """The paths of the method's static tree, one per node. A ValueError if the tree is not static."""
        shape = cast("TreeShape | None", self.tree_shape)
        if not isinstance(shape, tuple):
            raise ValueError(f"drafts {self.drafts} of {self.label} need a static tree, got {self.tree}; use chain9")
        return shape

    @property
    def drafts_row(self) -> DraftsRow:
        """Declaration of the drafter, `NO_DRAFTS` for autoregressive decoding."""
        return drafts_of(self.drafts)

    @property
    def acceptance_row(self) -> AcceptanceRow:
        """Declaration of the acceptance, which a custom class makes by its attributes."""
        return acceptance_of(self.acceptance)

    @property
    def classes(self) -> tuple[str, ...]:
        """The paths that its parts name: drafter, decoder, trained networks, acceptance, and those of its residual."""
        drafts = self.drafts_row
        residual = RESIDUALS[self.residual]
        paths = self.drafter_path, drafts.loop, *drafts.trained.values(), self.acceptance_row.path
        return (*paths, residual.path, residual.greedy_verifier) if residual.path else paths

    @property
    def drafter_path(self) -> str:
        """The class of the drafter, which may be another one for trees with siblings."""
        row = self.drafts_row
        return row.path if is_chain(self.tree_shape) else row.branched or row.path

    @property
    def is_exact(self) -> bool:
        """True if the output distribution is the target's."""
        return self.acceptance_row.is_exact and self.drafts_row.is_exact

    @property
    def needs_draft_model(self) -> bool:
        """True if a draft model makes all or some of the drafts."""
        return self.drafts_row.needs_draft_model

    @property
    def needs_nearest_codes(self) -> bool:
        """True if the acceptance reads the table of nearest codes."""
        return "k" in self.acceptance_row.parameters

    @property
    def verifies_by_rejection(self) -> bool:
        """True if drafts are verified by rejection sampling above temperature 0.

        Otherwise drafts are compared with the token that the target samples.
        """
        if self.drafts_row.is_sampled:
            return True
        # Deterministic drafts are compared with one sample of the target. Only the residuals of LANTERN's code test
        # them one after the other.
        return self.residual != "paper" and self.acceptance != "exact"

    def samples_target_tokens(self, temperature: float) -> bool:
        """Return whether the target samples a token at every node, so that substitutions are defined."""
        return temperature == 0 or not self.verifies_by_rejection

    def keeps_tokens(self, temperature: float) -> bool:
        """Return whether images equal those of autoregressive decoding token for token, not only in distribution."""
        return self.is_exact and self.samples_target_tokens(temperature)

    def to_dict(self) -> dict[str, Any]:
        """Return the method as JSON values for records and tables: parts, parameters, and `is_exact`.

        The paths of the tree are left out, so that `from_dict` takes them.
        """
        parts = asdict(self)
        for name in ("tree_shape", "parameters", "code"):
            del parts[name]
        # All parameters, None if the method has none of the name: rows of a table have the same columns.
        parameters = {**dict.fromkeys(PARAMETERS), **self.parameters}
        return {**parts, **parameters, "is_exact": self.is_exact}


def make_method(name: str, **parts: Any) -> MethodSpec:
    """Make a method from a preset, which is a named combination of a tree, a drafter and an acceptance.

    Args:
        name: key of PRESETS. If the preset's tree is "static", the method gets the tree "naive_extend_57".
        parts: parameters that the preset needs, and parts that replace those of the preset, for example k=100,
            delta=0.1.

    Raises:
        ValueError: the preset is unknown, the parts do not fit each other, or a parameter is missing, unknown or out of
            range.
    """
    parts = {**preset_of(name), "method_id": name, **parts}
    if parts.get("tree") == "static":
        parts["tree"] = "naive_extend_57"
    return MethodSpec.of(name, **parts)


def _check_parts(spec: MethodSpec) -> None:
    drafts = spec.drafts_row
    acceptance = spec.acceptance_row
    if spec.residual not in RESIDUALS:
        raise ValueError(f"residual of {spec.name} must be one of {', '.join(RESIDUALS)}, got {spec.residual!r}")
    # Autoregressive decoding, or a method whose drafts, if it has any, are in no tree that a user names.
    if not drafts.trees:
        if spec.tree is not None:
            raise ValueError(f"method {spec.name} fills no tree with drafts, got tree {spec.tree}; remove it")
        if spec.acceptance != "exact":
            raise ValueError(
                f"method {spec.name} has no tree of drafts to relax, got acceptance {spec.acceptance}; set tree and "
                "drafts"
            )
        return
    if spec.tree is None:
        raise ValueError(f"drafts {spec.drafts} of {spec.name} need a tree, got none; name one, as in chain3")
    kind = _kind_of(spec.tree)
    # Parallel chains are also a static tree.
    if kind not in drafts.trees and not (kind == "chains" and "static" in drafts.trees):
        raise ValueError(
            f"{spec.drafts} drafts need a tree that is {' or '.join(drafts.trees)}, got {spec.tree} for {spec.name}; "
            f"{_TREES_FOR.get(drafts.trees[0], 'name a static tree, as in chain9, or choose other drafts')}"
        )
    if not drafts.meets() and spec.acceptance != "exact":
        raise ValueError(
            f"{spec.drafts} drafts have their own verification, got acceptance {spec.acceptance} for {spec.name}; use "
            "exact, or other drafts"
        )
    for need in acceptance.needs:
        if not drafts.meets(need):
            raise ValueError(
                f"acceptance {spec.acceptance} needs drafts that are {NEEDS[need]}, got {spec.drafts} for {spec.name}; "
                f"choose {' or '.join(drafts_for(acceptance.needs))}"
            )
    _check_residual(spec)


_TREES_FOR = {
    "joint": "name two static trees, Jacobi's and the draft model's, as in chain9+chain3",
    "chains": "name one like chain11x2",
}


def _kind_of(tree: str) -> str:
    if is_dynamic(tree):
        return "dynamic"
    if "+" in tree:
        return "joint"
    return "chains" if re.fullmatch(r"chain\d+x\d+", tree) else "static"


def _check_residual(spec: MethodSpec) -> None:
    residuals = spec.acceptance_row.residuals
    if residuals and spec.residual not in residuals:
        raise ValueError(
            f"acceptance {spec.acceptance} needs residual {' or '.join(residuals)}, got {spec.residual} for "
            f"{spec.name}: with another one, a weight below 1 would emit some codes too rarely"
        )
    if spec.residual == "matched" and not spec.drafts_row.is_sampled:
        raise ValueError(
            f"residual matched needs drafts {' or '.join(drafts_for(['sampled']))}, got {spec.drafts} for {spec.name}; "
            "if a draft is known before the target samples, residual paper already gives the least total variation"
        )
    row = RESIDUALS[spec.residual]
    for part, allowed in (("drafts", row.drafts), ("acceptance", row.acceptances)):
        if allowed and (got := getattr(spec, part)) not in allowed:
            raise ValueError(
                f"residual {spec.residual} needs {part} {' or '.join(allowed)}, got {got} for {spec.name}; use paper"
            )


def _checked_parameters(spec: MethodSpec) -> dict[str, ParameterValue]:
    """Return the parameters that the parts declare, whole numbers as int."""
    wanted = {**spec.drafts_row.parameters, **spec.acceptance_row.parameters}
    for name, value in spec.parameters.items():
        if name not in wanted and value is not None:
            raise ValueError(
                f"method {spec.name} with drafts {spec.drafts} and acceptance {spec.acceptance} takes no {name}, got "
                f"{value}; it takes {', '.join(wanted) or 'no parameters'}"
            )
    found: dict[str, ParameterValue] = {}
    for name, parameter in wanted.items():
        # None counts as missing: `to_dict` writes it for parameters that a method does not have.
        if spec.parameters.get(name) is None:
            raise ValueError(
                f"method {spec.name} with drafts {spec.drafts} and acceptance {spec.acceptance} needs {name}, "
                f"{parameter.bound}: {parameter.meaning}"
            )
        found[name] = parameter.check(name, spec.parameters[name], spec.name)
    if spec.needs_nearest_codes and spec.neighbours not in NEIGHBOURS:
        raise ValueError(f"neighbours of {spec.name} must be one of {', '.join(NEIGHBOURS)}, got {spec.neighbours!r}")
    return found


def _shape_of(spec: MethodSpec) -> TreeShape | None:
    """Return the shape of a method's tree, from `spec.tree_shape` or else by its name, or None without a tree."""
    shape = spec.tree_shape
    if spec.tree is None:
        return None
    if shape is None:
        return named_shape(spec.tree)
    if isinstance(shape, DynamicTreeOptions | JointTree):
        return shape
    try:
        # JSON has neither tuples nor dataclasses: a static tree is lists, a joint tree or dynamic options are a
        # mapping.
        if is_dynamic(spec.tree):
            return DynamicTreeOptions(**cast("Mapping[str, Any]", shape))
        if isinstance(shape, Mapping):
            return JointTree(**{part: _as_choices(choices) for part, choices in shape.items()})
        return _as_choices(shape)
    except TypeError as error:
        raise ValueError(
            f"tree_shape of {spec.name} must be a list of paths, or the options of a dynamic tree, got {shape!r}"
        ) from error


def _as_choices(paths: Iterable[Iterable[int]]) -> Choices:
    return tuple(tuple(path) for path in paths)


def is_chain(shape: object) -> bool:
    """Return whether a tree is static and has no siblings. `shape` is as in `MethodSpec.tree_shape`."""
    # Every rank of every path is 0.
    return isinstance(shape, tuple) and not any(any(path) for path in shape)


_OWN_PACKAGES = ("lantern", "lantern_methods")


def _code_of(spec: MethodSpec) -> str:
    """Return a checksum of the files of a method's classes outside Lantern, or "" if it has none."""
    custom = [path for path in spec.classes if re.split("[.:]", path)[0] not in _OWN_PACKAGES]
    files = filter(None, (inspect.getsourcefile(import_object(path)) for path in custom))
    checksum = hashlib.sha256(b"".join(Path(file).read_bytes() for file in files))
    return checksum.hexdigest()[:16] if custom else ""
