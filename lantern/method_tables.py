"""Table of all methods. This is a good file to start reading.

A method consists of a drafter, an acceptance and their parameters. A *drafter* proposes tokens, and an *acceptance*
determines which of them are accepted: exact acceptance keeps the target's distribution, relaxed acceptance accepts
more. The tables DRAFTS and ACCEPTANCE declare each part once: its class, its parameters, its paper, and whether it is
exact. RESIDUALS declares what replaces the target's distribution after a draft is rejected, and PRESETS the published
combinations, with their labels. Error messages, the config's schema and tables are made from these declarations.
Installed packages add to the tables by `declare`.

A custom drafter or acceptance is named by an import string such as "my_module:Capped". Its class declares the same data
as attributes.

Snakemake imports this module to plan the workflow, so it must not import torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import TypeVar

from lantern.import_paths import load_class
from lantern.parameters import PARAMETERS, Parameter, ParameterValue
from lantern.registry import Table

NEIGHBOURS = ("l2", "l2_normalised", "random")  # see `lantern.codebook.nearest_codes`


def _of(*names: str) -> dict[str, Parameter]:
    return {name: PARAMETERS[name] for name in names}


@dataclass(frozen=True)
class DraftsRow:
    """Declaration of a drafter.

    Attributes:
        path: class of the drafter, "module:Class".
        trees: kinds of trees that the drafter fills: "static", "chains" (chains of the same length below the root),
            "joint" (two static trees below one root), "dynamic". Empty if there are no drafts, or if the method itself
            arranges them, as PJD and SSD do.
        parameters: by name.
        needs_draft_model: whether a draft model makes all or some of the drafts.
        trained: other networks that make drafts: name in `DecodingModels.parts` -> class, "module:Class".
        is_sampled: whether drafts are sampled from a known distribution, with noise that the target does not use. If
            so, they are verified by rejection sampling above temperature 0.
        is_coupled: whether drafts are sampled with the target's noise.
        has_twins: whether two siblings may hold the same token.
        is_exact: whether decoding with exact acceptance keeps the target's distribution. If False, total variation is
            not measured at nodes of trees, since the drafts do not follow the recorded distributions.
        is_relaxable: whether drafts that are not exact may have a relaxed acceptance. Exact ones always may.
        loop: class of the decoder, which runs the decoding steps, "module:Class".
        branched: class for trees with siblings, if it is another one than `path`.
    """

    path: str
    trees: tuple[str, ...] = ("static",)
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    needs_draft_model: bool = False
    trained: Mapping[str, str] = field(default_factory=dict)
    is_sampled: bool = False
    is_coupled: bool = False
    has_twins: bool = False
    is_exact: bool = True
    is_relaxable: bool = False
    loop: str = "lantern.decoding:TreeDecoder"
    paper: str = ""
    branched: str = ""

    @property
    def is_trained(self) -> bool:
        """True if a draft model or another trained network makes all or some of the drafts."""
        return self.needs_draft_model or bool(self.trained)

    def meets(self, *needs: str) -> bool:
        """Return whether an acceptance with these needs, keys of NEEDS, may verify the drafts."""
        has = {
            "sampled": self.is_sampled,
            "deterministic": not self.is_sampled,
            "independent": not (self.is_sampled or self.is_coupled),
            "chain": True,  # up to the tree
        }
        # Other drafts that are not exact have a verification of their own.
        return (self.is_exact or self.is_relaxable) and all(has[need] for need in needs)


# Papers. `docs/preset_page.py` makes links of the arXiv numbers.
_FIXED_NOISE = "noise first, then a fixed point: Wiggers and Hoogeboom 2020, arXiv 2002.09928"
_EAGLE = "EAGLE, arXiv 2401.15077"
_SSD = "SSD, arXiv 2606.20543"
_SHIFT_HEADS = {"heads": "lantern.drafters.shift_heads:ShiftHeads"}
NO_DRAFTS = DraftsRow("lantern.drafters.base:NoDrafter", trees=())
_DRAFTS = {
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
        branched="lantern.drafters.jacobi_tree:JacobiTreeDrafter",
    ),
    "hybrid": DraftsRow(
        "lantern.drafters.hybrid:HybridTreeDrafter",
        ("joint", "static"),
        needs_draft_model=True,
        is_coupled=True,
        has_twins=True,
        paper="ours",
    ),
    "hybrid_head": DraftsRow(
        "lantern.drafters.state_head:HeadTreeDrafter",
        trained={"heads": "lantern.drafters.state_head:StateHead"},
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
    # ZipAR drafts nothing. Its decoder runs several lines in parallel.
    "zipar": DraftsRow(
        "lantern.drafters.base:NoDrafter",
        (),
        _of("window"),
        is_exact=False,
        loop="lantern.zipar:ZipARDecoder",
        paper="ZipAR, arXiv 2412.04062",
    ),
    # PJD's decoder drafts several lines at once, so that no tree holds the drafts.
    "pjd": DraftsRow(
        "lantern.pjd:LineDrafter",
        (),
        _of("window", "max_drafts"),
        is_sampled=True,
        is_exact=False,
        loop="lantern.pjd:PJDDecoder",
        paper="PJD, arXiv 2606.05703",
    ),
    "heads": DraftsRow(
        "lantern.drafters.shift_heads:HeadsDrafter",
        trained=_SHIFT_HEADS,
        is_sampled=True,
        paper=f"heads: {_SSD}",
    ),
    "jacobi_heads": DraftsRow(
        "lantern.drafters.shift_heads:JacobiHeadsDrafter",
        trained=_SHIFT_HEADS,
        is_coupled=True,
        has_twins=True,
        paper=f"{_FIXED_NOISE}; heads: {_SSD}",
    ),
    # The lines of an image determine the chain, so that a user names no tree.
    "ssd": DraftsRow(
        "lantern.drafters.ssd:LinesDrafter",
        (),
        _of("rounds"),
        trained=_SHIFT_HEADS,
        is_sampled=True,
        is_exact=False,
        paper=_SSD,
    ),
}
DRAFTS = Table("a drafter", _DRAFTS)


# What an acceptance may need of its drafts, as messages say it.
NEEDS = {
    # Verified by rejection sampling, so that s(x) may depend on the probability p(x) of a draft x.
    "sampled": "sampled from a known distribution",
    "deterministic": "known before the target samples",
    "independent": "known before the target samples and independent of its noise",
    "chain": "a chain",
}


def drafts_for(needs: Iterable[str]) -> list[str]:
    """Return the keys of DRAFTS whose drafts an acceptance with these needs may verify."""
    return [name for name, drafts in DRAFTS.items() if drafts.meets(*needs)]


@dataclass(frozen=True)
class ResidualRow:
    """Declaration of a residual, the distribution that replaces the target's after a draft is rejected.

    Attributes:
        path: function that computes it for relaxed sets, "module:name". Its arguments are a `RelaxedSets` and those of
            `RelaxedSets.residual` after the first. Empty for a residual of all acceptances.
        drafts: keys of DRAFTS that it is for. Empty for all.
        acceptances: keys of ACCEPTANCE that it is for. Empty for all.
        extra_codes: number of nearest codes that it reads beyond the acceptance's k.
        takes_first_leaf: whether paths of dynamic trees are in another order at temperature 0, see `GreedyWithinBound`.
    """

    path: str = ""
    drafts: tuple[str, ...] = ()
    acceptances: tuple[str, ...] = ()
    extra_codes: int = 0
    takes_first_leaf: bool = False


def _of_lantern_authors(path: str) -> ResidualRow:
    return ResidualRow(
        path,
        ("sampled", "top"),
        ("exact", "additive", "jensen_shannon", "multiplicative"),
        extra_codes=1,
        takes_first_leaf=True,
    )


RESIDUALS = Table(
    "a residual",
    {
        "paper": ResidualRow(),
        "official": _of_lantern_authors("lantern.acceptance.lantern_authors:llamagen"),
        "official_lumina": _of_lantern_authors("lantern.acceptance.lantern_authors:lumina"),
        "matched": ResidualRow(),
    },
)


@dataclass(frozen=True)
class AcceptanceRow:
    """Declaration of an acceptance, which defines the relaxed probability s(x) of a draft x.

    Exact acceptance takes the target's probability of x. Relaxed acceptance adds the probabilities of similar codes.

    Attributes:
        path: class of the acceptance, "module:Class".
        parameters: by name. An acceptance with the parameter k reads the table of nearest codes.
        needs: keys of NEEDS, what drafts must be in order to be combined with the acceptance. Empty for all drafts.
        exact_at: parameter values that make decoding exact, such as delta = 0.
        residuals: keys of RESIDUALS that the acceptance supports. Empty for all.
        is_exact: whether the output distribution is the target's.
    """

    path: str
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    exact_at: Mapping[str, float] = field(default_factory=dict)
    residuals: tuple[str, ...] = ()
    is_exact: bool = False
    paper: str = ""

    def __post_init__(self) -> None:
        if not set(self.needs) <= set(NEEDS):
            raise ValueError(
                f"needs of {self.path} must be some of {', '.join(NEEDS)}, got {self.needs!r}; write a tuple of these "
                "words"
            )


_LANTERN = "LANTERN, arXiv 2410.03355"
_ACCEPTANCE = {
    "exact": AcceptanceRow("lantern.acceptance.base:Exact", is_exact=True),
    "additive": AcceptanceRow(
        "lantern.acceptance.relaxed_sets:AdditiveBound",
        _of("k", "delta"),
        exact_at={"delta": 0},
        paper=_LANTERN,
    ),
    "jensen_shannon": AcceptanceRow(
        "lantern.acceptance.relaxed_sets:JensenShannonBound",
        _of("k", "delta"),
        exact_at={"delta": 0},
        paper=_LANTERN,
    ),
    "multiplicative": AcceptanceRow(
        "lantern.acceptance.relaxed_sets:MultiplicativeBound",
        _of("k", "lambda_"),
        exact_at={"lambda_": 1},
        paper="LANTERN++, arXiv 2502.06352",
    ),
    "bounded": AcceptanceRow(
        "lantern.acceptance.similarity:BudgetBound",
        _of("k", "delta"),
        ("independent",),  # only there delta bounds TV
        exact_at={"delta": 0},
        paper="ours",
    ),
    "proximity": AcceptanceRow("lantern.acceptance.similarity:Proximity", _of("k"), ("deterministic",), paper="ours"),
    "weighted": AcceptanceRow(
        "lantern.acceptance.cool:DraftWeights",
        _of("omega", "fall"),
        ("sampled", "chain"),  # it has no weights for siblings
        residuals=("matched",),
        paper="COOL-SD, arXiv 2601.09212",
    ),
    "group": AcceptanceRow(
        "lantern.acceptance.gsd:ProbabilityGroups",
        _of("h", "p_max", "d_max"),
        ("sampled",),
        paper="GSD, arXiv 2508.07747",
    ),
    "ensemble": AcceptanceRow(
        "lantern.acceptance.mixtures:Ensemble", _of("weight"), ("sampled",), paper="DIVERSED, arXiv 2604.07622"
    ),
    "mixing": AcceptanceRow(
        "lantern.acceptance.mixtures:Mixing", _of("budget"), ("sampled",), paper="its aim: arXiv 2609.30474"
    ),
}
ACCEPTANCE = Table("an acceptance", _ACCEPTANCE)

# All parameters of methods are then in PARAMETERS, also one that a single declaration makes for itself. Those of
# packages are not: whatever is installed, tables of results have the same columns.
for _row in (*_DRAFTS.values(), *_ACCEPTANCE.values()):
    PARAMETERS.update(_row.parameters)


@dataclass(frozen=True)
class PresetRow:
    """Declaration of a named method.

    Attributes:
        label: name in tables and figures.
        parts: tree, drafts, acceptance, residual and parameters. The tree "static" means the default static tree of the
            config or of the model.
        is_peer: whether the method was published by authors other than those of EAGLE, LANTERN and this project.
        is_unverified: whether it was written from notes by others, since neither paper nor code was available. Labels
            say so.
    """

    label: str
    parts: Mapping[str, ParameterValue]
    is_peer: bool = False
    is_unverified: bool = False


_SJD: dict[str, ParameterValue] = {"tree": "chain15", "drafts": "sjd", "coupling": "none", "labels": "point"}
_PRESETS = {
    "autoregressive": PresetRow("autoregressive", {}),
    "eagle1": PresetRow("EAGLE-1", {"tree": "static", "drafts": "sampled"}),
    "eagle2": PresetRow("EAGLE-2", {"tree": "dynamic", "drafts": "top"}),
    "lantern": PresetRow("LANTERN", {"tree": "dynamic", "drafts": "top", "acceptance": "additive"}),
    "lantern_pp": PresetRow("LANTERN++", {"tree": "static", "drafts": "sampled", "acceptance": "multiplicative"}),
    "coupled": PresetRow("coupled", {"tree": "static", "drafts": "coupled"}),
    "proximity": PresetRow("proximity", {"tree": "static", "drafts": "coupled", "acceptance": "proximity"}),
    "bounded": PresetRow("bounded", {"tree": "dynamic", "drafts": "top", "acceptance": "bounded"}),
    "jacobi": PresetRow("Jacobi", {"tree": "chain9", "drafts": "jacobi"}),
    "hybrid": PresetRow("hybrid", {"tree": "chain9+chain3", "drafts": "hybrid"}),
    "jacobi_50": PresetRow("Jacobi, 50 nodes", {"tree": "jacobi_50", "drafts": "jacobi"}),
    "jacobi_100": PresetRow("Jacobi, 100 nodes", {"tree": "jacobi_100", "drafts": "jacobi"}),
    "hybrid_16": PresetRow("hybrid, 16 nodes", {"tree": "hybrid_16", "drafts": "hybrid"}),
    "cool": PresetRow(
        "COOL-SD",
        {"tree": "chain5", "drafts": "sampled", "acceptance": "weighted", "residual": "matched", "fall": 0.7},
        is_peer=True,
    ),
    "ensemble": PresetRow("ensemble", {"tree": "chain5", "drafts": "sampled", "acceptance": "ensemble"}, is_peer=True),
    "mixing": PresetRow("mixing", {"tree": "chain5", "drafts": "sampled", "acceptance": "mixing"}, is_peer=True),
    "sjd": PresetRow("SJD", _SJD, is_peer=True),
    "scd_gumbel": PresetRow("SCD, Gumbel", {**_SJD, "coupling": "gumbel"}, is_peer=True),
    "scd": PresetRow("SCD", {**_SJD, "coupling": "maximal"}, is_peer=True),
    "sjd_pp": PresetRow("SJD++", {"tree": "chain15", "drafts": "sjd_pp", "threshold": 0.5}, is_peer=True),
    "sjd_pac": PresetRow(
        "SJD-PAC", {**_SJD, "tree": "chain15k3d2", "coupling": "maximal", "labels": "uniform"}, is_peer=True
    ),
    "path_relax": PresetRow("PathRelax", {"tree": "chain11x2", "drafts": "path_relax", "delta": 0.01}, is_peer=True),
    "gsd": PresetRow("GSD", {**_SJD, "acceptance": "group", "h": 7, "p_max": 0.15, "d_max": 0.5}, is_peer=True),
    "zipar": PresetRow("ZipAR", {"drafts": "zipar", "window": 16}, is_peer=True),
    "pjd": PresetRow("PJD", {"drafts": "pjd", "window": 8, "max_drafts": 16}, is_peer=True, is_unverified=True),
    "ssd": PresetRow("SSD", {"drafts": "ssd", "rounds": 2}, is_peer=True, is_unverified=True),
}
PRESETS = Table("a preset", _PRESETS)


def declare(name: str, row: DraftsRow | ResidualRow | AcceptanceRow | PresetRow) -> None:
    """Add a drafter, a residual, an acceptance or a preset. A ValueError if there is one of that name."""
    if isinstance(row, DraftsRow):
        DRAFTS.declare(name, row)
    elif isinstance(row, ResidualRow):
        RESIDUALS.declare(name, row)
    elif isinstance(row, AcceptanceRow):
        ACCEPTANCE.declare(name, row)
    else:
        PRESETS.declare(name, row)


def preset_of(name: str) -> Mapping[str, ParameterValue]:
    """Return the parts of a preset, a key of PRESETS, or raise a ValueError that lists them."""
    if not isinstance(name, str) or name not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
    return PRESETS[name].parts


def drafts_of(name: object) -> DraftsRow:
    """Return the declaration of a drafter: a key of DRAFTS, "module:Class", or None for no drafts."""
    if name is None:
        return NO_DRAFTS
    return _declared(name, "drafts", DRAFTS, DraftsRow)


def acceptance_of(name: object) -> AcceptanceRow:
    """Return the declaration of an acceptance: a key of ACCEPTANCE, or "module:Class"."""
    return _declared(name, "acceptance", ACCEPTANCE, AcceptanceRow)


_Row = TypeVar("_Row", DraftsRow, AcceptanceRow)


def _declared(name: object, what: str, table: Mapping[str, _Row], kind: type[_Row]) -> _Row:
    """Return an entry of a table, or the declaration that the attributes of a custom class make."""
    if isinstance(name, str) and name in table:
        return table[name]
    if not isinstance(name, str) or ":" not in name:
        raise ValueError(f"{what} must be one of {', '.join(table)}, or my_module:MyClass, got {name!r}")
    custom = load_class(name)
    if not hasattr(custom, "make"):
        raise ValueError(
            f"{name} must define make, as classes derived from {_BASES[what]} do; derive it from that class"
        )
    # Attributes that the class does not define keep the defaults of the declaration.
    names = [part.name for part in fields(kind) if part.name != "path"]
    given = {key: getattr(custom, key) for key in names if hasattr(custom, key)}
    return kind(name, **given)


_BASES = {"acceptance": "lantern.acceptance.base:Acceptance", "drafts": "lantern.drafters.base:Drafter"}
