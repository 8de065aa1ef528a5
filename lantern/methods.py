"""The methods, start here: a method is a drafter and an acceptance, each with its parameters.

DRAFTS and ACCEPTANCE declare every part once: its class, its parameters with their bounds, its paper, and whether it is
exact; PRESETS names combinations as they are published. Errors, the config's schema, labels and tables are read from
here. A part of a user's own is an import string, "my_module:Capped", whose class declares the same as attributes.

Read while Snakemake plans the workflow: no torch here.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from lantern.tree_shapes import DynamicTreeOptions, JointTree, TreeShape, joint_choices, tree_choices

NEIGHBOURS = ("l2", "l2_normalised", "random")
OFFICIAL_RESIDUALS = ("official", "official_lumina")
RESIDUALS = ("paper", *OFFICIAL_RESIDUALS, "matched")


@dataclass(frozen=True)
class Parameter:
    """A number that a part takes, or a word.

    Attributes:
        symbol: in labels.
        meaning: with its unit.
        low: smallest value; with `is_open` the value must be above it.
        high: largest value.
        is_open: see `low`.
        is_whole: whether the number must be whole.
        choices: the words allowed; none for a number.
        remedy: what else a user may have wanted, the end of an error.
    """

    symbol: str
    meaning: str
    low: float = -math.inf
    high: float = math.inf
    is_open: bool = False
    is_whole: bool = False
    choices: tuple[str, ...] = ()
    remedy: str = ""

    @property
    def bound(self) -> str:
        """What a value must be, in words."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        interval = f"{'>' if self.is_open else '>='} {self.low:g}" if self.low > -math.inf else ""
        if self.high < math.inf:
            interval = f"in {'(' if self.is_open else '['}{self.low:g}, {self.high:g}]"
        kind = "a whole number" if self.is_whole else "" if interval else "a number"
        return f"{kind} {interval}".strip()

    def check(self, name: str, value: Any, owner: str) -> None:
        """Raises a ValueError with parameter, method, bound, value and remedy where a value is not allowed."""
        if self.choices:
            is_allowed = value in self.choices
        else:
            is_allowed = isinstance(value, Integral if self.is_whole else Real) and not isinstance(value, bool)
            is_allowed = is_allowed and math.isfinite(value) and self.low <= value <= self.high
            is_allowed = is_allowed and not (self.is_open and value == self.low)
        if not is_allowed:
            remedy = f"; {self.remedy}" if self.remedy else ""
            raise ValueError(f"{name} of {owner} must be {self.bound}, got {value!r}{remedy}")


_EXACT = "for exact decoding use acceptance exact"
PARAMETERS = {
    "k": Parameter("k", "nearest codes of a draft", 1, is_whole=True, remedy=_EXACT),
    "delta": Parameter(
        "δ", "bound: probability mass, or bits of divergence", 0, 1, remedy="for the multiplicative bound set lambda_"
    ),
    "lambda_": Parameter("λ", "bound: a factor", 1, remedy="1 is exact, for the additive bound set delta"),
    "omega": Parameter("ω", "mean weight of a chain's drafts", 0, is_open=True, remedy="1 is exact where fall is 0"),
    "fall": Parameter("fall", "a draft's weight is exp(-fall) times the one before", -10, 10),
    "weight": Parameter(
        "w", "share of the target's distribution, the rest is the drafts'", 0, 1, is_open=True, remedy="1 is exact"
    ),
    "budget": Parameter("budget", "total variation from the target", 0, 1, remedy="0 is exact"),
    "h": Parameter("h", "half the width of a group of codes, ranks", 1, is_whole=True, remedy=_EXACT),
    "p_max": Parameter(
        "Δp", "difference of probabilities within a group, which stays below", 0, is_open=True, remedy=_EXACT
    ),
    "d_max": Parameter(
        "d²", "squared distance of embeddings within a group, which stays below", 0, is_open=True, remedy=_EXACT
    ),
    "threshold": Parameter(
        "τ", "ratio t(x) / p(x) above which a draft is kept", 0, remedy="0 keeps all that is possible"
    ),
    "window": Parameter("w", "tokens of a line drawn before the next line begins", 1, is_whole=True),
    "coupling": Parameter(
        "coupling", "how drafts follow those of the step before", choices=("none", "gumbel", "maximal")
    ),
    "labels": Parameter("labels", "what first drafts count as drawn from", choices=("point", "uniform")),
}


def _of(*names: str) -> dict[str, Parameter]:
    return {name: PARAMETERS[name] for name in names}


@dataclass(frozen=True)
class DraftsRow:
    """The row of a drafter in the table DRAFTS.

    Attributes:
        path: its class, "module:Class".
        trees: the kinds of trees that it fills: "static", "chains" (of one length below the root), "joint" (two static
            ones), "dynamic"; none if it drafts nothing.
        parameters: by name.
        needs_draft_model: whether a draft model makes the drafts, or some of them.
        is_sampled: whether drafts are drawn from a known distribution with noise of their own; above temperature 0
            they are then verified by rejection.
        is_coupled: whether the target's own noise picks the drafts.
        has_twins: whether siblings may carry the same token.
        is_exact: whether exact acceptance leaves the target's distribution, and what is measured at a node holds.
        loop: the decoder that runs it, "module:Class".
        paper: its source.
    """

    path: str
    trees: tuple[str, ...] = ("static",)
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    needs_draft_model: bool = False
    is_sampled: bool = False
    is_coupled: bool = False
    has_twins: bool = False
    is_exact: bool = True
    loop: str = "lantern.decoding:Decoder"
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
        "lantern.drafters.jacobi:JacobiDrafter",
        is_coupled=True,
        has_twins=True,
        paper=f"{_FIXED_NOISE}; the pool of earlier samples and trees of them: ours",
    ),
    "hybrid": DraftsRow(
        "lantern.drafters.jacobi:HybridDrafter",
        ("joint",),
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
    """The row of an acceptance in the table ACCEPTANCE.

    Attributes:
        path: its class, "module:Class".
        parameters: by name; one that takes k reads the table of nearest codes.
        drafts: the kinds of drafts that it goes with; None for all.
        reason: why others are refused, the end of an error.
        exact_at: values of parameters at which a draft stands for itself alone, so that decoding is exact.
        has_official: whether the LANTERN authors' code has it, so that their residuals exist.
        residuals: those that it goes with.
        needs_chain: whether siblings are refused.
        is_exact: whether the output distribution is the target's.
        paper: its source.
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

_SJD = {"tree": "chain15", "drafts": "sjd", "coupling": "none", "labels": "point"}
# Methods of others than EAGLE, LANTERN and this project, with their published parameters.
_OF_PEERS: dict[str, dict[str, Any]] = {
    "cool": {"tree": "chain5", "drafts": "sampled", "acceptance": "weighted", "residual": "matched", "fall": 0.7},
    "ensemble": {"tree": "chain5", "drafts": "sampled", "acceptance": "ensemble"},
    "mixing": {"tree": "chain5", "drafts": "sampled", "acceptance": "mixing"},
    "sjd": _SJD,
    "scd_gumbel": {**_SJD, "coupling": "gumbel"},
    "scd": {**_SJD, "coupling": "maximal"},
    "sjd_pp": {"tree": "chain15", "drafts": "sjd_pp", "threshold": 0.5},
    "sjd_pac": {**_SJD, "tree": "chain15k3d2", "coupling": "maximal", "labels": "uniform"},
    "path_relax": {"tree": "chain11x2", "drafts": "path_relax", "delta": 0.01},
    "gsd": {**_SJD, "acceptance": "group", "h": 7, "p_max": 0.15, "d_max": 0.5},
    "zipar": {"drafts": "zipar", "window": 16},
}
PEERS = tuple(_OF_PEERS)
# Parts of each preset; tree "static" stands for the config's draft_tree.static.
PRESETS: dict[str, dict[str, Any]] = {
    "autoregressive": {},
    "eagle1": {"tree": "static", "drafts": "sampled"},
    "eagle2": {"tree": "dynamic", "drafts": "top"},
    "lantern": {"tree": "dynamic", "drafts": "top", "acceptance": "additive"},
    "lantern_pp": {"tree": "static", "drafts": "sampled", "acceptance": "multiplicative"},
    "coupled": {"tree": "static", "drafts": "coupled"},
    "proximity": {"tree": "static", "drafts": "coupled", "acceptance": "proximity"},
    "bounded": {"tree": "dynamic", "drafts": "top", "acceptance": "bounded"},
    "jacobi": {"tree": "chain9", "drafts": "jacobi"},
    "hybrid": {"tree": "chain9+chain3", "drafts": "hybrid"},
    **_OF_PEERS,
}


CLASS_FOLDERS = "LANTERN_CLASSES"  # environment variable: folders of users' own classes, as in PATH


def load_class(path: str) -> type:
    """The class of an import string, "module:Class", on Python's path or in a folder that CLASS_FOLDERS lists.

    Raises:
        ValueError: no such module there, one that cannot be imported, or no such class in it.
    """
    module, _, name = path.partition(":")
    # Last on the path, so that a file there takes the place of no library.
    folders = filter(None, os.environ.get(CLASS_FOLDERS, "").split(os.pathsep))
    sys.path += [folder for folder in folders if folder not in sys.path]
    try:
        found = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # a user's file may raise whatever it likes
        kind = "" if isinstance(error, ModuleNotFoundError | AttributeError) else f"{type(error).__name__}: "
        raise ValueError(
            f"{path} must name a class as module:Class, of a file beside the overlay or an installed package: {kind}"
            f"{error}"
        ) from error
    if not isinstance(found, type):
        raise ValueError(f"{path} must name a class as module:Class, got {type(found).__name__}")
    return found


def drafts_of(name: str | None) -> DraftsRow:
    """Return the row of a kind of drafts.

    Args:
        name: key of DRAFTS, "module:Class" of a custom drafter, which declares its row itself, None or nan (no drafts).

    Raises:
        ValueError: unknown; lists the known ones.
    """
    return NO_DRAFTS if name is None or name != name else _declared(name, "drafts", DRAFTS, DraftsRow)


def acceptance_of(name: str) -> AcceptanceRow:
    """Return the row of an acceptance, as `drafts_of` does."""
    return _declared(name, "acceptance", ACCEPTANCE, AcceptanceRow)


def _declared(name: str, what: str, table: Mapping[str, Any], row: type) -> Any:
    if isinstance(name, str) and name in table:
        return table[name]
    if not isinstance(name, str) or ":" not in name:
        raise ValueError(f"{what} must be one of {', '.join(table)}, or my_module:MyClass, got {name!r}")
    custom = load_class(name)
    for old, remedy in _REPLACED[what].items():
        if hasattr(custom, old):
            raise ValueError(f"{name} must not define {old}, which Lantern no longer calls; {remedy}")
    given = {key: getattr(custom, key) for key in row.__dataclass_fields__ if key != "path" and hasattr(custom, key)}
    return row(name, **given)


# Names that custom classes defined for earlier versions, and what to define now.
_REPLACED = {
    "acceptance": {
        "surrogate": "rename it to relaxed_prob",
        "surrogate_of_all": "rename it to relaxed_prob_of_all",
        "make_rule": "rename it to make_verifier",
        "bounds_mass": "derive the class from Proximity if A(x) does not depend on its probability",
    },
    "drafts": {"rule": "rename it to verifier"},
}


@dataclass(frozen=True)
class MethodSpec:
    """One decoding method with its parameters, which are attributes too: `spec.k` is None where it takes none.

    Attributes:
        name: of a preset, or of the config's choice.
        tree: "dynamic", the name of a static tree, two of them as "chain9+chain3" (Jacobi's and the draft model's) for
            hybrid drafts; None where there are no drafts.
        drafts: of DRAFTS, or a user's own class; None for autoregressive decoding.
        acceptance: of ACCEPTANCE, or a user's own class.
        residual: what a rejection leaves: "paper", or what the authors' code does, "official" for LlamaGen and
            "official_lumina"; or "matched", the least total variation from the target that the acceptance allows.
        neighbours: which nearest codes, one of NEIGHBOURS; None where the acceptance takes no k.
        parameters: those that the parts declare, by name.
        method_id: unique within a config, safe as a file name.
        tree_shape: choices of the static tree, or options of the dynamic one (also as JSON values); by default what
            `tree` stands for. None for autoregressive decoding.
        code: checksum of a user's own classes.

    Raises:
        ValueError: parts that do not go together; a parameter missing, foreign or out of range; an unknown tree.
    """

    name: str
    tree: str | None = None
    drafts: str | None = None
    acceptance: str = "exact"
    residual: str = "paper"
    neighbours: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)
    method_id: str = ""
    tree_shape: TreeShape | Mapping[str, int] | Sequence[Sequence[int]] | None = field(default=None, hash=False)
    code: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise ValueError(f"a method's name must be lower-case letters, digits and _, got {self.name!r}")
        for part in ("tree", "residual", "neighbours", "method_id"):
            if not isinstance(getattr(self, part), str | None):
                raise ValueError(f"{part} of {self.name} must be a name, got {getattr(self, part)!r}")
        _check_parts(self)
        _check_parameters(self)
        try:
            object.__setattr__(self, "tree_shape", _shape_of(self))
        except TypeError as error:
            raise ValueError(
                f"tree_shape of {self.name} must be a list of paths, or the options of a dynamic tree, got "
                f"{self.tree_shape!r}"
            ) from error
        object.__setattr__(self, "code", _code_of(self))
        if self.acceptance_row.needs_chain and (
            not isinstance(self.tree_shape, tuple) or any(map(any, self.tree_shape))
        ):
            raise ValueError(
                f"acceptance {self.acceptance} needs a chain, got tree {self.tree} for {self.name}; it has no weights "
                "for siblings"
            )

    def __getattr__(self, name: str) -> Any:
        if name in PARAMETERS:
            return self.parameters.get(name)
        raise AttributeError(f"MethodSpec has no attribute {name}")

    @classmethod
    def of(cls, name: str, **parts: Any) -> MethodSpec:
        """A method of parts and parameters side by side; nearest codes are l2_normalised unless `neighbours` is given.

        Raises:
            ValueError: as `MethodSpec`.
        """
        taken = cls.__dataclass_fields__.keys() - {"name", "parameters"}
        fields = {key: value for key, value in parts.items() if key in taken}
        others = [name for name in parts if name not in PARAMETERS and name not in fields and name != "is_exact"]
        parameters = {name: parts[name] for name in (*PARAMETERS, *others) if parts.get(name) is not None}
        if "k" in acceptance_of(fields.get("acceptance", "exact")).parameters:
            fields.setdefault("neighbours", "l2_normalised")
        return cls(name, parameters=parameters, **fields)

    @property
    def drafts_row(self) -> DraftsRow:
        """The row of its drafts."""
        return drafts_of(self.drafts)

    @property
    def acceptance_row(self) -> AcceptanceRow:
        """The row of its acceptance."""
        return acceptance_of(self.acceptance)

    @property
    def is_exact(self) -> bool:
        """Whether the output distribution is the target's."""
        return self.acceptance_row.is_exact and self.drafts_row.is_exact

    @property
    def needs_draft_model(self) -> bool:
        """Whether a draft model makes the drafts, or some of them."""
        return self.drafts_row.needs_draft_model

    @property
    def needs_nearest_codes(self) -> bool:
        """Whether its acceptance reads the table of nearest codes."""
        return "k" in self.acceptance_row.parameters

    def to_dict(self) -> dict[str, Any]:
        """What records and tables keep of a method, as JSON values: parts, parameters side by side, `is_exact`."""
        fields = asdict(self)
        for name in ("tree_shape", "parameters", "code"):
            del fields[name]
        parameters = {**dict.fromkeys(PARAMETERS), **self.parameters}
        return {**fields, **parameters, "is_exact": self.is_exact}


def preset_of(name: str) -> dict[str, Any]:
    """Return the parts of a preset.

    Raises:
        ValueError: unknown; lists the known ones.
    """
    if not isinstance(name, str) or name not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
    return PRESETS[name]


def make_method(name: str, **parts: Any) -> MethodSpec:
    """A preset of PRESETS as it is published, with naive_extend_57 for its static tree; `parts` are parameters that it
    needs and parts that it shall differ in, for example k=100, delta=0.1.

    Raises:
        ValueError: unknown preset, or as `MethodSpec`.
    """
    parts = {**preset_of(name), "method_id": name, **parts}
    if parts.get("tree") == "static":
        parts["tree"] = "naive_extend_57"
    return MethodSpec.of(name, **parts)


def verifies_by_rejection(method: Mapping[str, Any]) -> bool:
    """Whether, above temperature 0, children are tried one after the other instead of being compared with a token that
    the target draws; of `method`, as `MethodSpec.to_dict` has it, drafts, acceptance and residual are read.
    """
    if drafts_of(method["drafts"]).is_sampled:
        return True
    return method["residual"] != "paper" and method["acceptance"] != "exact"


def draws_target_tokens(method: Mapping[str, Any], temperature: float) -> bool:
    """Whether the target draws a token of its own at every node: only then is a substitution defined. `method` as in
    `verifies_by_rejection`.
    """
    return temperature == 0 or not verifies_by_rejection(method)


def keeps_tokens(method: Mapping[str, Any], temperature: float) -> bool:
    """Whether the images equal autoregressive decoding's token for token, not in distribution alone; `method` is a
    whole `MethodSpec.to_dict`.
    """
    return method["is_exact"] and draws_target_tokens(method, temperature)


def _check_parts(spec: MethodSpec) -> None:
    drafts, acceptance = spec.drafts_row, spec.acceptance_row
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
            f"{spec.drafts} drafts are verified in a way of their own, got acceptance {spec.acceptance} for "
            f"{spec.name}; use exact, or other drafts"
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
            f"residual matched needs drafts {' or '.join(_REJECTED)}, got {spec.drafts} for {spec.name}; where a draft "
            "is known before the target draws, residual paper leaves the least total variation already"
        )
    is_authors = spec.drafts in ("sampled", "top") and spec.acceptance_row.has_official
    if spec.residual in OFFICIAL_RESIDUALS and not is_authors:
        raise ValueError(
            f"residual {spec.residual} is the authors' code, which has no such method as {spec.name}; use paper"
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
    shape = spec.tree_shape
    if spec.tree is None or isinstance(shape, DynamicTreeOptions | JointTree):
        return shape
    if spec.drafts == "hybrid":
        if isinstance(shape, Mapping):
            return JointTree(**{part: tuple(map(tuple, choices)) for part, choices in shape.items()})
        return joint_choices(spec.tree)
    if spec.tree == "dynamic":
        return DynamicTreeOptions(**(shape or {}))
    return tree_choices(spec.tree, None if shape is None else {spec.tree: shape})


def _code_of(spec: MethodSpec) -> str:
    files = [inspect.getsourcefile(load_class(part)) for part in (spec.drafts, spec.acceptance) if ":" in str(part)]
    return hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()[:16] if files else ""
