"""Tables of methods. This is a good file to start reading.

A method consists of a drafter, an acceptance and their parameters. A *drafter* proposes tokens, and an *acceptance*
determines which of them are accepted: exact acceptance keeps the target's distribution, relaxed acceptance accepts
more. The tables DRAFTS and ACCEPTANCE declare each part once: its class, its parameters, its paper, and whether it is
exact. RESIDUALS declares what replaces the target's distribution after a draft is rejected, and PRESETS the published
combinations, with their labels. Error messages, the config's schema and tables are made from these declarations.

This file has the rows of the core: EAGLE, LANTERN, LANTERN++ and Jacobi decoding. `lantern_methods` adds its rows by
`declare` as it is imported, and so do modules that installed packages name in group "lantern.methods" of their entry
points. A custom drafter or acceptance needs no row: it is named by an import string such as "my_module:Capped", and its
class declares the same data as attributes.

Snakemake imports this module to plan the workflow, so it must not import torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import TypeVar

from lantern.extensions import Table, load_class
from lantern.parameters import Parameter, ParameterValue, parameters_named

NEIGHBOURS = ("l2", "l2_normalised", "random")  # see `lantern.codebook.nearest_codes`


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
FIXED_NOISE = "noise first, then a fixed point: Wiggers and Hoogeboom 2020, arXiv 2002.09928"
_EAGLE = "EAGLE, arXiv 2401.15077"
NO_DRAFTS = DraftsRow("lantern.drafters.base:NoDrafter", trees=())
DRAFTS = Table(
    "a drafter",
    {
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
            paper=f"{FIXED_NOISE}; the coupling: Daliri et al. 2024, arXiv 2408.07978",
        ),
        "jacobi": DraftsRow(
            "lantern.drafters.jacobi:JacobiDrafter",
            is_coupled=True,
            has_twins=True,
            paper=f"{FIXED_NOISE}; the pool of earlier samples and trees of them: ours",
            branched="lantern_methods.jacobi_tree:JacobiTreeDrafter",
        ),
    },
)


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
        greedy_verifier: class of relaxed sets' verifier at temperature 0.
    """

    path: str = ""
    drafts: tuple[str, ...] = ()
    acceptances: tuple[str, ...] = ()
    extra_codes: int = 0
    greedy_verifier: str = "lantern.acceptance.relaxed_sets:GreedyWithinBound"


RESIDUALS = Table("a residual", {"paper": ResidualRow(), "matched": ResidualRow()})


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
ACCEPTANCE = Table(
    "an acceptance",
    {
        "exact": AcceptanceRow("lantern.acceptance.base:Exact", is_exact=True),
        "additive": AcceptanceRow(
            "lantern.acceptance.relaxed_sets:AdditiveBound",
            parameters_named("k", "delta"),
            exact_at={"delta": 0},
            paper=_LANTERN,
        ),
        "jensen_shannon": AcceptanceRow(
            "lantern.acceptance.relaxed_sets:JensenShannonBound",
            parameters_named("k", "delta"),
            exact_at={"delta": 0},
            paper=_LANTERN,
        ),
        "multiplicative": AcceptanceRow(
            "lantern.acceptance.relaxed_sets:MultiplicativeBound",
            parameters_named("k", "lambda_"),
            exact_at={"lambda_": 1},
            paper="LANTERN++, arXiv 2502.06352",
        ),
    },
)


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


PRESETS = Table(
    "a preset",
    {
        "autoregressive": PresetRow("autoregressive", {}),
        "eagle1": PresetRow("EAGLE-1", {"tree": "static", "drafts": "sampled"}),
        "eagle2": PresetRow("EAGLE-2", {"tree": "dynamic", "drafts": "top"}),
        "lantern": PresetRow("LANTERN", {"tree": "dynamic", "drafts": "top", "acceptance": "additive"}),
        "lantern_pp": PresetRow("LANTERN++", {"tree": "static", "drafts": "sampled", "acceptance": "multiplicative"}),
        "coupled": PresetRow("coupled", {"tree": "static", "drafts": "coupled"}),
        "jacobi": PresetRow("Jacobi", {"tree": "chain9", "drafts": "jacobi"}),
    },
)


def declare(name: str, row: DraftsRow | ResidualRow | AcceptanceRow | PresetRow) -> None:
    """Add a drafter, a residual, an acceptance or a preset. A ValueError if there is one of that name."""
    tables = {DraftsRow: DRAFTS, ResidualRow: RESIDUALS, AcceptanceRow: ACCEPTANCE, PresetRow: PRESETS}
    tables[type(row)].declare(name, row)


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
