"""Table of all methods. This is a good file to start reading.

A method consists of a drafter, an acceptance and their parameters. A *drafter* proposes tokens, and an *acceptance*
determines which of them are accepted: exact acceptance keeps the target's distribution, relaxed acceptance accepts
more. The tables DRAFTS and ACCEPTANCE declare each part once: its class, its parameters, its paper, and whether it is
exact. PRESET_ROWS declares the published combinations, with their labels. Error messages, the config's schema and
tables are made from these declarations.

A custom part is an import string such as "my_module:Capped". Its class declares the same data as attributes.

Snakemake imports this module to plan the workflow, so it must not import torch.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar, cast

from lantern.parameters import PARAMETERS as PARAMETERS
from lantern.parameters import Parameter as Parameter
from lantern.parameters import ParameterValue
from lantern.tree_shapes import Choices, DynamicTreeOptions, JointTree, TreeShape, joint_choices, tree_choices

NEIGHBOURS = ("l2", "l2_normalised", "random")
OFFICIAL_RESIDUALS = ("official", "official_lumina")
RESIDUALS = ("paper", *OFFICIAL_RESIDUALS, "matched")


def _of(*names: str) -> dict[str, Parameter]:
    return {name: PARAMETERS[name] for name in names}


@dataclass(frozen=True)
class DraftsRow:
    """Declaration of a drafter, an entry of the table DRAFTS.

    Attributes:
        path: class of the drafter, "module:Class".
        trees: kinds of trees that the drafter fills: "static", "chains" (chains of the same length below the root),
            "joint" (two static trees below one root), "dynamic". Empty if the method has no drafts.
        parameters: parameters by name.
        needs_draft_model: whether a draft model makes all or some of the drafts.
        is_sampled: whether drafts are sampled from a known distribution, with noise that the target does not use. If
            so, they are verified by rejection sampling above temperature 0.
        is_coupled: whether drafts are sampled with the target's noise.
        has_twins: whether two siblings may hold the same token.
        is_exact: whether decoding with exact acceptance has the target's distribution. If False, total variation is not
            measured, since `Proposal.draft_probs` is not the distribution of the drafts either.
        loop: class of the decoder, "module:Class".
        paper: source of the method.
    """

    path: str
    trees: tuple[str, ...] = ("static",)
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    needs_draft_model: bool = False
    is_sampled: bool = False
    is_coupled: bool = False
    has_twins: bool = False
    is_exact: bool = True
    loop: str = "lantern.decoding:TreeDecoder"
    paper: str = ""


_FIXED_NOISE = "noise first, then a fixed point: Wiggers and Hoogeboom 2020, arXiv 2002.09928"
_EAGLE = "EAGLE, arXiv 2401.15077"
NO_DRAFTS = DraftsRow("lantern.drafters.base:NoDrafter", trees=())
DRAFTS = {
    "sampled": DraftsRow(
        "lantern.drafters.eagle:EagleDrafter",
        needs_draft_model=True,
        is_sampled=True,
        paper=_EAGLE,
    ),
    "top": DraftsRow(
        "lantern.drafters.eagle:EagleDrafter",
        ("static", "dynamic"),
        needs_draft_model=True,
        paper="EAGLE-2, arXiv 2406.16858",
    ),
    "coupled": DraftsRow(
        "lantern.drafters.eagle:EagleDrafter",
        ("static", "dynamic"),
        needs_draft_model=True,
        is_coupled=True,
        paper=f"{_FIXED_NOISE}; the coupling: Daliri et al. 2024, arXiv 2408.07978",
    ),
    "jacobi": DraftsRow(
        "lantern.drafters.jacobi_tree:JacobiTreeDrafter",
        is_coupled=True,
        has_twins=True,
        paper=f"{_FIXED_NOISE}; the pool of earlier samples and trees of them: ours",
    ),
    "jacobi_source": DraftsRow(
        "lantern.drafters.jacobi:SourceJacobiDrafter",
        is_coupled=True,
        has_twins=True,
        paper=f"{_FIXED_NOISE}; first drafts from a source picture: ours",
    ),
    "hybrid": DraftsRow(
        "lantern.drafters.hybrid_tree:HybridTreeDrafter",
        ("joint", "static"),
        needs_draft_model=True,
        is_coupled=True,
        has_twins=True,
        paper="ours",
    ),
    "sjd": DraftsRow(
        "lantern.drafters.sjd:SpeculativeJacobiDrafter",
        parameters=_of("coupling", "labels"),
        is_sampled=True,
        paper="SJD, arXiv 2410.01699; coupled: SCD, arXiv 2510.24211; trees: SJD-PAC, arXiv 2603.18599",
    ),
    "sjd_pp": DraftsRow(
        "lantern.drafters.sjd:SpeculativeJacobiDrafter",
        parameters=_of("threshold"),
        is_sampled=True,
        is_exact=False,
        paper="SJD++, arXiv 2512.07503",
    ),
    "path_relax": DraftsRow(
        "lantern.drafters.path_relax:ParallelChainsDrafter",
        ("chains",),
        _of("delta"),
        is_sampled=True,
        is_exact=False,
        paper="PathRelax, arXiv 2606.10492",
    ),
    "zipar": DraftsRow(
        "lantern.drafters.base:NoDrafter",
        (),
        _of("window"),
        is_exact=False,
        loop="lantern.zipar:LinesDecoder",
        paper="ZipAR, arXiv 2412.04062",
    ),
}


@dataclass(frozen=True)
class AcceptanceRow:
    """Declaration of an acceptance, an entry of the table ACCEPTANCE.

    An acceptance defines the relaxed probability s(x) of a draft x, with which drafts are verified. Exact acceptance
    takes the target's probability of x. Relaxed acceptance adds the probabilities of similar codes.

    Attributes:
        path: class of the acceptance, "module:Class".
        parameters: parameters by name. An acceptance with the parameter k reads the table of nearest codes.
        drafts: keys of DRAFTS that can be combined with the acceptance. None for all.
        reason: why other drafts are refused, the end of the error message.
        exact_at: parameter values that make decoding exact, such as delta = 0.
        has_official: whether LANTERN's public code has this acceptance. If not, the residuals "official" and
            "official_lumina" are not allowed.
        residuals: residual distributions that the acceptance supports, see `MethodSpec`.
        needs_chain: whether the tree must be a chain.
        is_exact: whether the output distribution is the target's.
        paper: source of the acceptance.
    """

    path: str
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    drafts: tuple[str, ...] | None = None
    reason: str = ""
    exact_at: Mapping[str, float] = field(default_factory=dict)
    has_official: bool = False
    residuals: tuple[str, ...] = RESIDUALS
    needs_chain: bool = False
    is_exact: bool = False
    paper: str = ""


_LANTERN = "LANTERN, arXiv 2410.03355"
_REJECTED = tuple(name for name, drafts in DRAFTS.items() if drafts.is_sampled and drafts.is_exact)
ACCEPTANCE = {
    "exact": AcceptanceRow("lantern.acceptance.base:Exact", has_official=True, is_exact=True),
    "additive": AcceptanceRow(
        "lantern.acceptance.relaxed_sets:AdditiveBound",
        _of("k", "delta"),
        exact_at={"delta": 0},
        has_official=True,
        paper=_LANTERN,
    ),
    "jensen_shannon": AcceptanceRow(
        "lantern.acceptance.relaxed_sets:JensenShannonBound",
        _of("k", "delta"),
        exact_at={"delta": 0},
        has_official=True,
        paper=_LANTERN,
    ),
    "multiplicative": AcceptanceRow(
        "lantern.acceptance.relaxed_sets:MultiplicativeBound",
        _of("k", "lambda_"),
        exact_at={"lambda_": 1},
        has_official=True,
        paper="LANTERN++, arXiv 2502.06352",
    ),
    "bounded": AcceptanceRow(
        "lantern.acceptance.relaxed_sets:BudgetBound",
        _of("k", "delta"),
        ("top",),
        "; only there delta bounds TV",
        exact_at={"delta": 0},
        paper="ours",
    ),
    "proximity": AcceptanceRow(
        "lantern.acceptance.relaxed_sets:Proximity", _of("k"), ("coupled", "top", "jacobi", "hybrid"), paper="ours"
    ),
    "weighted": AcceptanceRow(
        "lantern.acceptance.weights:DraftWeights",
        _of("omega", "fall"),
        _REJECTED,
        residuals=("matched",),
        needs_chain=True,
        paper="COOL-SD, arXiv 2601.09212",
    ),
    "group": AcceptanceRow(
        "lantern.acceptance.groups:ProbabilityGroups",
        _of("h", "p_max", "d_max"),
        _REJECTED,
        paper="GSD, arXiv 2508.07747",
    ),
    "ensemble": AcceptanceRow(
        "lantern.acceptance.mixtures:Ensemble", _of("weight"), _REJECTED, paper="DIVERSED, arXiv 2604.07622"
    ),
    "mixing": AcceptanceRow(
        "lantern.acceptance.mixtures:Mixing", _of("budget"), _REJECTED, paper="its aim: arXiv 2609.30474"
    ),
}

# A declaration may have a parameter that no other part has.
for _row in (*DRAFTS.values(), *ACCEPTANCE.values()):
    PARAMETERS.update(_row.parameters)


@dataclass(frozen=True)
class PresetRow:
    """Declaration of a named method, an entry of the table PRESET_ROWS.

    Attributes:
        label: name in tables and figures.
        parts: tree, drafts, acceptance, residual and parameters. The tree "static" means the default static tree of the
            config or of the model.
        colour: colour in figures, "#rrggbb". If empty, figures choose a colour that no preset has.
        marker: matplotlib marker in figures. If empty, figures choose one.
        is_peer: whether the method was published by authors other than those of EAGLE, LANTERN and this project.
    """

    label: str
    parts: Mapping[str, ParameterValue]
    colour: str = ""
    marker: str = ""
    is_peer: bool = False


_SJD: dict[str, ParameterValue] = {"tree": "chain15", "drafts": "sjd", "coupling": "none", "labels": "point"}
# Colours of Okabe and Ito (2008), "Color Universal Design", then of Tol (2021), "muted".
PRESET_ROWS = {
    "autoregressive": PresetRow("autoregressive", {}, "#000000", "*"),
    "eagle1": PresetRow("EAGLE-1", {"tree": "static", "drafts": "sampled"}, "#7F7F7F", "s"),
    "eagle2": PresetRow("EAGLE-2", {"tree": "dynamic", "drafts": "top"}, "#56B4E9", "D"),
    "lantern": PresetRow("LANTERN", {"tree": "dynamic", "drafts": "top", "acceptance": "additive"}, "#D55E00", "o"),
    "lantern_pp": PresetRow(
        "LANTERN++", {"tree": "static", "drafts": "sampled", "acceptance": "multiplicative"}, "#E69F00", "^"
    ),
    "coupled": PresetRow("coupled", {"tree": "static", "drafts": "coupled"}, "#0072B2", "P"),
    "proximity": PresetRow(
        "proximity", {"tree": "static", "drafts": "coupled", "acceptance": "proximity"}, "#009E73", "v"
    ),
    "bounded": PresetRow("bounded", {"tree": "dynamic", "drafts": "top", "acceptance": "bounded"}, "#CC79A7", "X"),
    "jacobi": PresetRow("Jacobi", {"tree": "chain9", "drafts": "jacobi"}, "#332288", ">"),
    "hybrid": PresetRow("hybrid", {"tree": "chain9+chain3", "drafts": "hybrid"}, "#999933", "p"),
    "jacobi_50": PresetRow("Jacobi, 50 nodes", {"tree": "jacobi_50", "drafts": "jacobi"}, "#5566CC", "d"),
    "jacobi_100": PresetRow("Jacobi, 100 nodes", {"tree": "jacobi_100", "drafts": "jacobi"}, "#8899EE", "8"),
    "hybrid_16": PresetRow("hybrid, 16 nodes", {"tree": "hybrid_16", "drafts": "hybrid"}, "#BBBB66", "H"),
    "cool": PresetRow(
        "COOL-SD",
        {"tree": "chain5", "drafts": "sampled", "acceptance": "weighted", "residual": "matched", "fall": 0.7},
        "#AA4499",
        "<",
        is_peer=True,
    ),
    "ensemble": PresetRow(
        "ensemble", {"tree": "chain5", "drafts": "sampled", "acceptance": "ensemble"}, "#6699CC", "x", is_peer=True
    ),
    "mixing": PresetRow(
        "mixing", {"tree": "chain5", "drafts": "sampled", "acceptance": "mixing"}, "#EE3377", "+", is_peer=True
    ),
    "sjd": PresetRow("SJD", _SJD, "#117733", "1", is_peer=True),
    "scd_gumbel": PresetRow("SCD, Gumbel", {**_SJD, "coupling": "gumbel"}, "#88CCEE", "2", is_peer=True),
    "scd": PresetRow("SCD", {**_SJD, "coupling": "maximal"}, "#DDAA33", "3", is_peer=True),
    "sjd_pp": PresetRow(
        "SJD++", {"tree": "chain15", "drafts": "sjd_pp", "threshold": 0.5}, "#BB5566", "4", is_peer=True
    ),
    "sjd_pac": PresetRow(
        "SJD-PAC",
        {**_SJD, "tree": "chain15k3d2", "coupling": "maximal", "labels": "uniform"},
        "#004488",
        "d",
        is_peer=True,
    ),
    "path_relax": PresetRow(
        "PathRelax", {"tree": "chain11x2", "drafts": "path_relax", "delta": 0.01}, "#997700", "8", is_peer=True
    ),
    "gsd": PresetRow(
        "GSD", {**_SJD, "acceptance": "group", "h": 7, "p_max": 0.15, "d_max": 0.5}, "#661177", "H", is_peer=True
    ),
    "zipar": PresetRow("ZipAR", {"drafts": "zipar", "window": 16}, "#225522", "p", is_peer=True),
}
PRESETS: dict[str, dict[str, ParameterValue]] = {name: dict(row.parts) for name, row in PRESET_ROWS.items()}
PEERS = tuple(name for name, row in PRESET_ROWS.items() if row.is_peer)


CLASS_FOLDERS = "LANTERN_CLASSES"  # environment variable: folders of custom classes, separated as in PATH


def load_class(path: str) -> type:
    """Import a class.

    Args:
        path: "module:Class". The module is on Python's path, or in a folder that the environment variable
            LANTERN_CLASSES lists.

    Raises:
        ValueError: the module or class does not exist, the module cannot be imported, or the name is not that of a
            class.
    """
    wanted = "a class as module:Class"
    found = import_object(path, f"{wanted}, of a file next to the overlay or an installed package")
    if not isinstance(found, type):
        raise ValueError(f"{path} must name {wanted}, got {type(found).__name__}")
    return found


def import_object(path: str, wanted: str) -> object:
    """Import a class or a function.

    Args:
        path: "module:name", as in `load_class`.
        wanted: description of what the path must name, for the error message.

    Raises:
        ValueError: as in `load_class`.
    """
    module, _, name = path.partition(":")
    # The folders are added at the end of the path, so that none of their files hides a library.
    folders = filter(None, os.environ.get(CLASS_FOLDERS, "").split(os.pathsep))
    sys.path += [folder for folder in folders if folder not in sys.path]
    try:
        return getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # a custom module may raise any error
        kind = "" if isinstance(error, ModuleNotFoundError | AttributeError) else f"{type(error).__name__}: "
        raise ValueError(f"{path} must name {wanted}: {kind}{error}") from error


def drafts_of(name: object) -> DraftsRow:
    """Return the declaration of a kind of drafts: its class, its parameters and its properties.

    Args:
        name: key of DRAFTS, or "module:Class" of a custom drafter. None for no drafts. nan means the same, since pandas
            reads an empty cell of a table as nan.

    Raises:
        ValueError: the name is unknown. The message lists the known ones.
    """
    if name is None or name != name:
        return NO_DRAFTS
    return _declared(name, "drafts", DRAFTS, DraftsRow)


def acceptance_of(name: object) -> AcceptanceRow:
    """Return the declaration of an acceptance: its class, its parameters and its properties.

    Args:
        name: key of ACCEPTANCE, or "module:Class" of a custom acceptance.

    Raises:
        ValueError: the name is unknown. The message lists the known ones.
    """
    return _declared(name, "acceptance", ACCEPTANCE, AcceptanceRow)


_Row = TypeVar("_Row", DraftsRow, AcceptanceRow)


def _declared(name: object, what: str, table: Mapping[str, _Row], kind: type[_Row]) -> _Row:
    """Return what a source of drafts or an acceptance declares about itself, such as its parameters.

    It is a row of a table, or is made from the attributes of a custom class.

    Args:
        name: key of the table, or "module:Class".
        what: kind of part for messages, "drafts" or "acceptance".
        table: DRAFTS or ACCEPTANCE.
        kind: class of the declarations in the table.

    Raises:
        ValueError: the name is unknown, or the class defines an attribute that Lantern no longer reads.
    """
    if isinstance(name, str) and name in table:
        return table[name]
    if not isinstance(name, str) or ":" not in name:
        raise ValueError(f"{what} must be one of {', '.join(table)}, or my_module:MyClass, got {name!r}")
    custom = load_class(name)
    for old, remedy in _REPLACED[what].items():
        if hasattr(custom, old):
            raise ValueError(f"{name} must not define {old}, which Lantern no longer calls; {remedy}")
    names = [part.name for part in fields(kind) if part.name != "path"]
    given = {key: getattr(custom, key) for key in names if hasattr(custom, key)}
    return kind(name, **given)


# Names that custom classes defined in earlier versions, and what to do now.
_REPLACED = {
    "acceptance": {
        "surrogate": "rename it to relaxed_prob",
        "surrogate_of_all": "rename it to relaxed_prob_of_all",
        "make_rule": "rename it to make_verifier",
        "bounds_mass": "derive the class from Proximity if A(x) does not depend on its probability",
        "moves_mass": "define move_mass and has_one_residual instead",
    },
    "drafts": {"rule": "rename it to verifier"},
}


@dataclass(frozen=True)
class MethodSpec:
    """A decoding method: its parts and their parameters.

    `spec["k"]` is a parameter of the method. `spec.get("k")` is None if the method has no such parameter.

    Attributes:
        name: name of a preset, or any other name.
        tree: "dynamic", or the name of a static tree. For hybrid drafts two names, first of the tree for Jacobi drafts,
            then of the tree for the draft model, as in "chain9+chain3". None if there are no drafts.
        drafts: key of DRAFTS, or "module:Class". None for autoregressive decoding.
        acceptance: key of ACCEPTANCE, or "module:Class".
        residual: distribution that replaces the target's after a draft is rejected. "paper" is the one in the papers.
            "official" (LlamaGen) and "official_lumina" (Lumina-mGPT) are those of LANTERN's public code. "matched" is
            the one closest to the target that the acceptance allows.
        neighbours: distance that defines nearest codes, one of NEIGHBOURS. None if the acceptance has no parameter k.
        parameters: values of the parameters that the parts declare, by name.
        method_id: identifier, unique within a config and safe as a file name.
        tree_shape: paths of a static tree, or options of a dynamic one. JSON values are converted. By default the shape
            of the tree that `tree` names. None for autoregressive decoding.
        code: checksum of the files of custom classes, so that images are generated again if such a file is edited.

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
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict, hash=False)
    method_id: str = ""
    tree_shape: TreeShape | Mapping[str, Any] | Sequence[Sequence[int]] | None = field(default=None, hash=False)
    code: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise ValueError(f"a method's name must be lower-case letters, digits and _, got {self.name!r}")
        for part in ("tree", "residual", "neighbours", "method_id"):
            if not isinstance(getattr(self, part), str | None):
                raise ValueError(f"{part} of {self.name} must be a name, got {getattr(self, part)!r}")
        _check_parts(self)
        _check_parameters(self)
        object.__setattr__(self, "tree_shape", _shape_of(self))
        object.__setattr__(self, "code", _code_of(self))
        if self.acceptance_row.needs_chain and not is_chain(self.tree_shape):
            raise ValueError(
                f"acceptance {self.acceptance} needs a chain, got tree {self.tree} for {self.name}; it has no weights "
                "for siblings"
            )

    @classmethod
    def of(cls, name: str, **parts: Any) -> MethodSpec:
        """Make a method from its parts and parameters, all passed as keyword arguments.

        Args:
            name: name of the method.
            parts: attributes of `MethodSpec`, and parameters such as k=100. If the method reads a table of nearest
                codes, `neighbours` (the table's measure of distance) is "l2_normalised" by default.

        Raises:
            ValueError: the parts do not fit each other, or a parameter is missing, unknown or out of range.
        """
        taken = {part.name for part in fields(cls)} - {"name", "parameters"}
        known = {key: value for key, value in parts.items() if key in taken}
        others = [name for name in parts if name not in PARAMETERS and name not in known and name != "is_exact"]
        parameters = {name: parts[name] for name in (*PARAMETERS, *others) if parts.get(name) is not None}
        if "k" in acceptance_of(known.get("acceptance", "exact")).parameters:
            known.setdefault("neighbours", "l2_normalised")
        return cls(name, parameters=parameters, **known)

    def __getitem__(self, name: str) -> Any:
        """Return the value of a parameter: a number or a word. PARAMETERS describes the parameters."""
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
        """The paths of the method's static tree from the root, one per node.

        Raises:
            ValueError: the tree is not static.
        """
        shape = cast("TreeShape | None", self.tree_shape)
        if not isinstance(shape, tuple):
            raise ValueError(f"drafts {self.drafts} of {self.label} need a static tree, got {self.tree}; use chain9")
        return shape

    @property
    def drafts_row(self) -> DraftsRow:
        """The declaration of the method's drafts: the entry of DRAFTS, or the one made from a custom class."""
        return drafts_of(self.drafts)

    @property
    def acceptance_row(self) -> AcceptanceRow:
        """The declaration of the method's acceptance: the entry of ACCEPTANCE, or the one made from a custom class."""
        return acceptance_of(self.acceptance)

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

    def to_dict(self) -> dict[str, Any]:
        """Return the method as JSON values for records and tables: parts, parameters, and `is_exact`."""
        parts = asdict(self)
        for name in ("tree_shape", "parameters", "code"):
            del parts[name]
        parameters = {**dict.fromkeys(PARAMETERS), **self.parameters}
        return {**parts, **parameters, "is_exact": self.is_exact}


def preset_of(name: str) -> dict[str, ParameterValue]:
    """Return the parts of a preset.

    Args:
        name: key of PRESETS.

    Raises:
        ValueError: the name is unknown. The message lists the known ones.
    """
    if not isinstance(name, str) or name not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
    return PRESETS[name]


def make_method(name: str, **parts: Any) -> MethodSpec:
    """Make the method of a preset.

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


def verifies_by_rejection(method: Mapping[str, object]) -> bool:
    """Return whether drafts are verified by rejection sampling above temperature 0.

    Otherwise drafts are compared with the token that the target samples.

    Args:
        method: values of `MethodSpec.to_dict`. Only drafts, acceptance and residual are read.
    """
    if drafts_of(method["drafts"]).is_sampled:
        return True
    return method["residual"] != "paper" and method["acceptance"] != "exact"


def samples_target_tokens(method: Mapping[str, object], temperature: float) -> bool:
    """Return whether the target samples a token at every node.

    Only then is a *substitution* defined, an emitted token that differs from the target's sample.

    Args:
        method: values of `MethodSpec.to_dict`. Only drafts, acceptance and residual are read.
        temperature: temperature of the target.
    """
    return temperature == 0 or not verifies_by_rejection(method)


def keeps_tokens(method: Mapping[str, object], temperature: float) -> bool:
    """Return whether images equal those of autoregressive decoding token for token, not only in distribution.

    Args:
        method: values of `MethodSpec.to_dict`.
        temperature: temperature of the target.
    """
    return bool(method["is_exact"]) and samples_target_tokens(method, temperature)


def _check_parts(spec: MethodSpec) -> None:
    drafts = spec.drafts_row
    acceptance = spec.acceptance_row
    if spec.residual not in RESIDUALS:
        raise ValueError(f"residual of {spec.name} must be one of {', '.join(RESIDUALS)}, got {spec.residual!r}")
    if not drafts.trees:
        if spec.tree is not None:
            raise ValueError(f"method {spec.name} has a tree and no drafts to fill it, got tree {spec.tree}; remove it")
        if spec.acceptance != "exact":
            raise ValueError(f"method {spec.name} relaxes drafts but has none; set tree and drafts")
        return
    if spec.tree is None:
        raise ValueError(f"drafts {spec.drafts} of {spec.name} need a tree, got none; name one, as in chain3")
    kind = _kind_of(spec.tree)
    if kind not in drafts.trees and not (kind == "chains" and "static" in drafts.trees):
        raise ValueError(
            f"{spec.drafts} drafts need a tree that is {' or '.join(drafts.trees)}, got {spec.tree} for {spec.name}; "
            f"{_TREES_FOR.get(drafts.trees[0], 'name a static tree, as in chain9, or choose other drafts')}"
        )
    if not drafts.is_exact and spec.acceptance != "exact":
        raise ValueError(
            f"{spec.drafts} drafts have their own verification, got acceptance {spec.acceptance} for {spec.name}; use "
            "exact, or other drafts"
        )
    if acceptance.drafts is not None and spec.drafts not in acceptance.drafts:
        raise ValueError(
            f"acceptance {spec.acceptance} needs drafts {' or '.join(acceptance.drafts)}, got {spec.drafts} for "
            f"{spec.name}{acceptance.reason}"
        )
    _check_residual(spec)


_TREES_FOR = {
    "joint": "name two static trees, Jacobi's and the draft model's, as in chain9+chain3",
    "chains": "name one like chain11x2",
}


def _kind_of(tree: str) -> str:
    if tree == "dynamic":
        return tree
    if "+" in tree:
        return "joint"
    return "chains" if re.fullmatch(r"chain\d+x\d+", tree) else "static"


def _check_residual(spec: MethodSpec) -> None:
    residuals = spec.acceptance_row.residuals
    if spec.residual not in residuals:
        raise ValueError(
            f"acceptance {spec.acceptance} needs residual {' or '.join(residuals)}, got {spec.residual} for "
            f"{spec.name}: with another one, a weight below 1 would emit some codes too rarely"
        )
    if spec.residual == "matched" and not spec.drafts_row.is_sampled:
        raise ValueError(
            f"residual matched needs drafts {' or '.join(_REJECTED)}, got {spec.drafts} for {spec.name}; if a draft is "
            "known before the target samples, residual paper already gives the least total variation"
        )
    is_authors = spec.drafts in ("sampled", "top") and spec.acceptance_row.has_official
    if spec.residual in OFFICIAL_RESIDUALS and not is_authors:
        raise ValueError(
            f"residual {spec.residual} is the authors' code, which does not have the method {spec.name}; use paper"
        )


def _check_parameters(spec: MethodSpec) -> None:
    wanted = {**spec.drafts_row.parameters, **spec.acceptance_row.parameters}
    for name, value in spec.parameters.items():
        if name not in wanted and value is not None:
            raise ValueError(
                f"method {spec.name} with drafts {spec.drafts} and acceptance {spec.acceptance} takes no {name}, got "
                f"{value}; it takes {', '.join(wanted) or 'no parameters'}"
            )
    for name, parameter in wanted.items():
        if spec.parameters.get(name) is None:
            raise ValueError(
                f"method {spec.name} with drafts {spec.drafts} and acceptance {spec.acceptance} needs {name}, "
                f"{parameter.bound}: {parameter.meaning}"
            )
        parameter.check(name, spec.parameters[name], spec.name)
    if spec.needs_nearest_codes and spec.neighbours not in NEIGHBOURS:
        raise ValueError(f"neighbours of {spec.name} must be one of {', '.join(NEIGHBOURS)}, got {spec.neighbours!r}")


def _shape_of(spec: MethodSpec) -> TreeShape | None:
    """Return the shape of a method's tree, or None if the method has no tree.

    The shape of a static tree is its paths. For hybrid drafts it is the paths of two trees. The shape of a dynamic tree
    is its options. If `spec.tree_shape` is set, its JSON values are converted to this form. Otherwise the tree is found
    by its name, `spec.tree`.

    Raises:
        ValueError: the given shape does not fit the kind of tree, or the name of the tree is unknown.
    """
    shape = spec.tree_shape
    if spec.tree is None:
        return None
    if isinstance(shape, DynamicTreeOptions | JointTree):
        return shape
    try:
        if spec.tree != "dynamic" and isinstance(shape, Mapping):
            return JointTree(**{part: _as_choices(choices) for part, choices in shape.items()})
        if shape is None and "+" in spec.tree:
            return joint_choices(spec.tree)
        if spec.tree == "dynamic":
            return DynamicTreeOptions(**cast("Mapping[str, Any]", shape or {}))
        return tree_choices(spec.tree) if shape is None else _as_choices(cast("Sequence[Sequence[int]]", shape))
    except TypeError as error:
        raise ValueError(
            f"tree_shape of {spec.name} must be a list of paths, or the options of a dynamic tree, got {shape!r}"
        ) from error


def _as_choices(paths: Iterable[Iterable[int]]) -> Choices:
    return tuple(tuple(path) for path in paths)


def is_chain(shape: object) -> bool:
    """Return whether a tree is static and has no siblings.

    Args:
        shape: shape of the tree, as in `MethodSpec.tree_shape`.
    """
    return isinstance(shape, tuple) and not any(any(path) for path in shape)


def _code_of(spec: MethodSpec) -> str:
    """Return a checksum of the files of a method's custom classes, or "" if it has none.

    The workflow compares it, so that images are generated again if such a file is edited.
    """
    custom = [part for part in (spec.drafts, spec.acceptance) if part is not None and ":" in part]
    if not custom:
        return ""
    checksum = hashlib.sha256()
    for part in custom:
        file = inspect.getsourcefile(load_class(part))
        if file is not None:
            checksum.update(Path(file).read_bytes())
    return checksum.hexdigest()[:16]
