"""Table of all methods. This is a good file to start reading.

A method consists of a drafter, an acceptance and their parameters. A *drafter* proposes tokens, and an *acceptance*
determines which of them are accepted: exact acceptance keeps the target's distribution, relaxed acceptance accepts
more. The tables DRAFTS and ACCEPTANCE declare each part once: its class, its parameters, its paper, and whether it is
exact. PRESET_ROWS declares the published combinations, with their labels. Error messages, the config's schema and
tables are made from these declarations.

A custom drafter or acceptance is named by an import string such as "my_module:Capped". Its class declares the same data
as attributes.

Snakemake imports this module to plan the workflow, so it must not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TypeVar

from lantern.import_paths import load_class
from lantern.parameters import PARAMETERS, Parameter, ParameterValue

NEIGHBOURS = ("l2", "l2_normalised", "random")  # those of `lantern.codebook`, which imports torch
OFFICIAL_RESIDUALS = ("official", "official_lumina")
RESIDUALS = ("paper", *OFFICIAL_RESIDUALS, "matched")


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
        needs_heads: the same for heads: shift heads, or a state head if `has_state_head` is True.
        is_sampled: whether drafts are sampled from a known distribution, with noise that the target does not use. If
            so, they are verified by rejection sampling above temperature 0.
        is_coupled: whether drafts are sampled with the target's noise.
        has_twins: whether two siblings may hold the same token.
        is_exact: whether decoding with exact acceptance keeps the target's distribution. If False, total variation is
            not measured at nodes of trees, since the drafts do not follow the recorded distributions.
        loop: class of the decoder, which runs the decoding steps, "module:Class".
    """

    path: str
    trees: tuple[str, ...] = ("static",)
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    needs_draft_model: bool = False
    needs_heads: bool = False
    has_state_head: bool = False
    is_sampled: bool = False
    is_coupled: bool = False
    has_twins: bool = False
    is_exact: bool = True
    loop: str = "lantern.decoding:TreeDecoder"
    paper: str = ""

    @property
    def is_trained(self) -> bool:
        """True if a draft model or heads make all or some of the drafts."""
        return self.needs_draft_model or self.needs_heads


# Papers. `docs/preset_page.py` makes links of the arXiv numbers.
_FIXED_NOISE = "noise first, then a fixed point: Wiggers and Hoogeboom 2020, arXiv 2002.09928"
_EAGLE = "EAGLE, arXiv 2401.15077"
_SSD = "SSD, arXiv 2606.20543"
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
    "hybrid_head": DraftsRow(
        "lantern.drafters.state_head:HeadTreeDrafter",
        needs_heads=True,
        has_state_head=True,
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
        "lantern.drafters.heads:HeadsDrafter",
        needs_heads=True,
        is_sampled=True,
        paper=f"heads: {_SSD}",
    ),
    "jacobi_heads": DraftsRow(
        "lantern.drafters.heads:JacobiHeadsDrafter",
        needs_heads=True,
        is_coupled=True,
        has_twins=True,
        paper=f"{_FIXED_NOISE}; heads: {_SSD}",
    ),
    # The lines of an image determine the chain, so that a user names no tree.
    "ssd": DraftsRow(
        "lantern.drafters.heads:LinesDrafter",
        (),
        _of("rounds"),
        needs_heads=True,
        is_sampled=True,
        is_exact=False,
        paper=_SSD,
    ),
}


@dataclass(frozen=True)
class AcceptanceRow:
    """Declaration of an acceptance, which defines the relaxed probability s(x) of a draft x.

    Exact acceptance takes the target's probability of x. Relaxed acceptance adds the probabilities of similar codes.

    Attributes:
        path: class of the acceptance, "module:Class".
        parameters: by name. An acceptance with the parameter k reads the table of nearest codes.
        drafts: keys of DRAFTS that can be combined with the acceptance. None for all.
        reason: text that ends the error message for other drafts, and states why they are refused.
        exact_at: parameter values that make decoding exact, such as delta = 0.
        has_official: whether LANTERN's public code has this acceptance. If not, the residuals "official" and
            "official_lumina" are not allowed.
        residuals: residual distributions that the acceptance supports, see `MethodSpec`.
        needs_chain: whether the tree must be a chain.
        is_exact: whether the output distribution is the target's.
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
# Drafts that are verified by rejection, so that s(x) may depend on the draft's probability p(x). Drafts that are not
# exact have a verification of their own.
REJECTED_DRAFTS = tuple(name for name, drafts in DRAFTS.items() if drafts.is_sampled and drafts.is_exact)
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
        REJECTED_DRAFTS,
        residuals=("matched",),
        needs_chain=True,
        paper="COOL-SD, arXiv 2601.09212",
    ),
    "group": AcceptanceRow(
        "lantern.acceptance.groups:ProbabilityGroups",
        _of("h", "p_max", "d_max"),
        REJECTED_DRAFTS,
        paper="GSD, arXiv 2508.07747",
    ),
    "ensemble": AcceptanceRow(
        "lantern.acceptance.mixtures:Ensemble", _of("weight"), REJECTED_DRAFTS, paper="DIVERSED, arXiv 2604.07622"
    ),
    "mixing": AcceptanceRow(
        "lantern.acceptance.mixtures:Mixing", _of("budget"), REJECTED_DRAFTS, paper="its aim: arXiv 2609.30474"
    ),
}

# All parameters of methods are then in PARAMETERS, also one that a single declaration makes for itself.
for _row in (*DRAFTS.values(), *ACCEPTANCE.values()):
    PARAMETERS.update(_row.parameters)


@dataclass(frozen=True)
class PresetRow:
    """Declaration of a named method.

    Attributes:
        label: name in tables and figures.
        parts: tree, drafts, acceptance, residual and parameters. The tree "static" means the default static tree of the
            config or of the model.
        colour: colour in figures, "#rrggbb". If empty, figures choose a colour that no preset has.
        marker: matplotlib marker in figures. If empty, figures choose one.
        is_peer: whether the method was published by authors other than those of EAGLE, LANTERN and this project.
        is_unverified: whether it was written from notes by others, since neither paper nor code was available. Labels
            say so.
    """

    label: str
    parts: Mapping[str, ParameterValue]
    colour: str = ""
    marker: str = ""
    is_peer: bool = False
    is_unverified: bool = False


_SJD: dict[str, ParameterValue] = {"tree": "chain15", "drafts": "sjd", "coupling": "none", "labels": "point"}
# Most colours are of Okabe and Ito (2008), "Color Universal Design", and of the schemes of Tol (2021).
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
    "pjd": PresetRow(
        "PJD", {"drafts": "pjd", "window": 8, "max_drafts": 16}, "#AA7744", "h", is_peer=True, is_unverified=True
    ),
    "ssd": PresetRow("SSD", {"drafts": "ssd", "rounds": 2}, "#AA3377", "X", is_peer=True, is_unverified=True),
}
PRESETS: dict[str, dict[str, ParameterValue]] = {name: dict(row.parts) for name, row in PRESET_ROWS.items()}
PEERS = tuple(name for name, row in PRESET_ROWS.items() if row.is_peer)


def preset_of(name: str) -> dict[str, ParameterValue]:
    """Return the parts of a preset, a key of PRESETS, or raise a ValueError that lists them."""
    if not isinstance(name, str) or name not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
    return PRESETS[name]


def drafts_of(name: object) -> DraftsRow:
    """Return the declaration of a drafter: a key of DRAFTS, "module:Class", or None for no drafts."""
    # nan means None, too, since pandas reads an empty cell of a table as nan. Only nan differs from itself.
    if name is None or name != name:
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
    for old, remedy in _REPLACED[what].items():
        if hasattr(custom, old):
            raise ValueError(f"{name} must not define {old}, which Lantern no longer calls; {remedy}")
    # Attributes that the class does not define keep the defaults of the declaration.
    names = [part.name for part in fields(kind) if part.name != "path"]
    given = {key: getattr(custom, key) for key in names if hasattr(custom, key)}
    return kind(name, **given)


_BASES = {"acceptance": "lantern.acceptance.base:Acceptance", "drafts": "lantern.drafters.base:Drafter"}
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
