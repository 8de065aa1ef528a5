"""Methods beyond EAGLE, LANTERN, LANTERN++ and Jacobi chains: a file each, relatives together, and here all their rows.

`lantern.extensions` imports this module to list methods, or to look up one that the core lacks. Snakemake does so to
plan the workflow, so the rows are not in the files of the methods, which import torch.
"""

from lantern.parameters import PARAMETERS, USE_EXACT, Parameter, ParameterValue, parameters_named
from lantern.registry import FIXED_NOISE, AcceptanceRow, DraftsRow, PresetRow, ResidualRow, declare
from lantern.tree_shapes import TREES, Choices, check_choices

_SSD = "SSD, arXiv 2606.20543"
_SHIFT_HEADS = {"heads": "lantern_methods.shift_heads:ShiftHeads"}

_OWN_PARAMETERS = {
    "omega": Parameter("ω", "mean weight of a chain's drafts", 0, is_open=True, remedy="1 is exact if fall is 0"),
    "fall": Parameter("fall", "a draft's weight is exp(-fall) times the one before", -10, 10),
    "weight": Parameter(
        "w",
        "weight of the target's distribution; the rest is the weight of the drafts'",
        0,
        1,
        is_open=True,
        remedy="1 is exact",
    ),
    "budget": Parameter("budget", "total variation from the target", 0, 1, remedy="0 is exact"),
    "h": Parameter("h", "half the width of a group of codes, in ranks", 1, is_integer=True, remedy=USE_EXACT),
    "p_max": Parameter(
        "Δp", "upper bound of the difference of probabilities within a group", 0, is_open=True, remedy=USE_EXACT
    ),
    "d_max": Parameter(
        "d²", "upper bound of the squared distance of embeddings within a group", 0, is_open=True, remedy=USE_EXACT
    ),
    "threshold": Parameter(
        "τ", "ratio t(x) / p(x) above which a draft is kept", 0, remedy="0 keeps all that is possible"
    ),
    "window": Parameter("w", "tokens of a line that are sampled before the next line begins", 1, is_integer=True),
    "max_drafts": Parameter("drafts", "largest number of drafts of a line in a step", 1, is_integer=True),
    "rounds": Parameter("r", "rounds in which the drafts of a line are corrected", 0, is_integer=True),
    "coupling": Parameter(
        "coupling", "how new drafts depend on those of the previous step", choices=("none", "gumbel", "maximal")
    ),
    "labels": Parameter(
        "labels", "distribution that random first drafts count as sampled from", choices=("point", "uniform")
    ),
}
for _name, _parameter in _OWN_PARAMETERS.items():
    PARAMETERS.declare(_name, _parameter)

# Similar codes, ours
declare(
    "bounded",
    AcceptanceRow(
        "lantern_methods.similarity:BudgetBound",
        parameters_named("k", "delta"),
        ("independent",),  # only there delta bounds TV
        exact_at={"delta": 0},
        paper="ours",
    ),
)
declare(
    "proximity",
    AcceptanceRow("lantern_methods.similarity:Proximity", parameters_named("k"), ("deterministic",), paper="ours"),
)
declare("proximity", PresetRow("proximity", {"tree": "static", "drafts": "coupled", "acceptance": "proximity"}))
declare("bounded", PresetRow("bounded", {"tree": "dynamic", "drafts": "top", "acceptance": "bounded"}))


def _complete(length: int, words: str) -> Choices:
    """Return the smallest static tree that contains a chain and the paths `words`, such as "02"."""
    chosen = {(0,) * depth for depth in range(1, length + 1)}
    for word in words.split():
        path = tuple(int(digit) for digit in word)
        # A path needs the parents of its nodes and their siblings of lower rank: "02" needs "0", "00" and "01".
        chosen |= {(*path[:depth], rank) for depth, last in enumerate(path) for rank in range(last + 1)}
    return tuple(check_choices(list(chosen)))


# Trees that benchmarks/jacobi_trees.py grew: the length of the chain of first children, and further paths.
_GROWN = {
    "jacobi_16": (12, "2 01 10"),
    "jacobi_32": (16, "3 02 11 0001 0010 0100 00001 10000"),
    "jacobi_50": (22, "5 02 11 20 0002 00010 00100 01000 000002 000010 100000 0000010"),
    "jacobi_100": (
        26,
        """5 04 13 21 31 40 012 030 300 0004 0011 0020 0110 1001 1010 2000 00003 00020 02000 11000 000003 001000 010000
        100000 0000002 0000020 0000100 0000200 0001000 00000002 00000100""",
    ),
    "hybrid_9": (7, "10"),
    "hybrid_16": (12, "01 100"),
    "hybrid_32": (16, "3 02 010 200 0001 0010 00001 10000"),
    "hybrid_50": (22, "4 03 11 30 002 020 200 0002 0100 00001 00010 00100 000001 100000"),
    "hybrid_100": (
        26,
        """5 04 12 21 40 021 030 102 300 0004 0020 0030 0101 0110 1100 2000 00002 00012 00020 02000 10100 000003 000011
        010000 0000001 0000100 0001000 0010000 1000000 00000001 00000101""",
    ),
}
for _name, (_length, _words) in _GROWN.items():
    TREES.declare(_name, _complete(_length, _words))

# Trees of Jacobi drafts, alone and together with a draft model or a state head, ours
declare(
    "hybrid",
    DraftsRow(
        "lantern_methods.hybrid:HybridTreeDrafter",
        ("joint", "static"),
        needs_draft_model=True,
        is_coupled=True,
        has_twins=True,
        paper="ours",
    ),
)
declare(
    "hybrid_head",
    DraftsRow(
        "lantern_methods.state_head:HeadTreeDrafter",
        trained={"heads": "lantern_methods.state_head:StateHead"},
        is_coupled=True,
        has_twins=True,
        paper="ours",
    ),
)
declare("hybrid", PresetRow("hybrid", {"tree": "chain9+chain3", "drafts": "hybrid"}))
declare("jacobi_50", PresetRow("Jacobi, 50 nodes", {"tree": "jacobi_50", "drafts": "jacobi"}))
declare("jacobi_100", PresetRow("Jacobi, 100 nodes", {"tree": "jacobi_100", "drafts": "jacobi"}))
declare("hybrid_16", PresetRow("hybrid, 16 nodes", {"tree": "hybrid_16", "drafts": "hybrid"}))

# The residuals of LANTERN's public code, for the two models that it has
for _name, _function in (("official", "llamagen"), ("official_lumina", "lumina")):
    declare(
        _name,
        ResidualRow(
            f"lantern_methods.lantern_authors:{_function}",
            drafts=("sampled", "top"),
            acceptances=("exact", "additive", "jensen_shannon", "multiplicative"),
            extra_codes=1,
            greedy_verifier="lantern_methods.lantern_authors:GreedyByFirstLeaf",
        ),
    )

# COOL-SD
declare(
    "weighted",
    AcceptanceRow(
        "lantern_methods.cool:DraftWeights",
        parameters_named("omega", "fall"),
        ("sampled", "chain"),  # it has no weights for siblings
        residuals=("matched",),
        paper="COOL-SD, arXiv 2601.09212",
    ),
)
declare(
    "cool",
    PresetRow(
        "COOL-SD",
        {"tree": "chain5", "drafts": "sampled", "acceptance": "weighted", "residual": "matched", "fall": 0.7},
        is_peer=True,
    ),
)

# Mixtures of the target's and the drafts' distribution
declare(
    "ensemble",
    AcceptanceRow(
        "lantern_methods.mixtures:Ensemble",
        parameters_named("weight"),
        ("sampled",),
        paper="DIVERSED, arXiv 2604.07622",
    ),
)
declare(
    "mixing",
    AcceptanceRow(
        "lantern_methods.mixtures:Mixing",
        parameters_named("budget"),
        ("sampled",),
        paper="its aim: arXiv 2609.30474",
    ),
)
for _name in ("ensemble", "mixing"):
    declare(_name, PresetRow(_name, {"tree": "chain5", "drafts": "sampled", "acceptance": _name}, is_peer=True))

# SJD, SCD, SJD++, SJD-PAC, and GSD, which has SJD's drafts
declare(
    "sjd",
    DraftsRow(
        "lantern_methods.sjd:SpeculativeJacobiDrafter",
        parameters=parameters_named("coupling", "labels"),
        is_sampled=True,
        paper="SJD, arXiv 2410.01699; coupled: SCD, arXiv 2510.24211; trees: SJD-PAC, arXiv 2603.18599",
    ),
)
declare(
    "sjd_pp",
    DraftsRow(
        "lantern_methods.sjd:SpeculativeJacobiDrafter",
        parameters=parameters_named("threshold"),
        is_sampled=True,
        is_exact=False,
        paper="SJD++, arXiv 2512.07503",
    ),
)
declare(
    "group",
    AcceptanceRow(
        "lantern_methods.gsd:ProbabilityGroups",
        parameters_named("h", "p_max", "d_max"),
        ("sampled",),
        paper="GSD, arXiv 2508.07747",
    ),
)
_SJD: dict[str, ParameterValue] = {"tree": "chain15", "drafts": "sjd", "coupling": "none", "labels": "point"}
_SJD_PAC: dict[str, ParameterValue] = {"tree": "chain15k3d2", "coupling": "maximal", "labels": "uniform"}
declare("sjd", PresetRow("SJD", _SJD, is_peer=True))
declare("scd_gumbel", PresetRow("SCD, Gumbel", {**_SJD, "coupling": "gumbel"}, is_peer=True))
declare("scd", PresetRow("SCD", {**_SJD, "coupling": "maximal"}, is_peer=True))
declare("sjd_pp", PresetRow("SJD++", {"tree": "chain15", "drafts": "sjd_pp", "threshold": 0.5}, is_peer=True))
declare("sjd_pac", PresetRow("SJD-PAC", {**_SJD, **_SJD_PAC}, is_peer=True))
declare(
    "gsd",
    PresetRow("GSD", {**_SJD, "acceptance": "group", "h": 7, "p_max": 0.15, "d_max": 0.5}, is_peer=True),
)

# PathRelax
declare(
    "path_relax",
    DraftsRow(
        "lantern_methods.path_relax:ParallelChainsDrafter",
        ("chains",),
        parameters_named("delta"),
        is_sampled=True,
        is_exact=False,
        paper="PathRelax, arXiv 2606.10492",
    ),
)
declare(
    "path_relax",
    PresetRow("PathRelax", {"tree": "chain11x2", "drafts": "path_relax", "delta": 0.01}, is_peer=True),
)

# ZipAR drafts nothing. Its decoder runs several lines in parallel.
declare(
    "zipar",
    DraftsRow(
        "lantern.drafters.base:NoDrafter",
        (),
        parameters_named("window"),
        is_exact=False,
        loop="lantern_methods.zipar:ZipARDecoder",
        paper="ZipAR, arXiv 2412.04062",
    ),
)
declare("zipar", PresetRow("ZipAR", {"drafts": "zipar", "window": 16}, is_peer=True))

# PJD's decoder drafts several lines at once, so that no tree holds the drafts.
declare(
    "pjd",
    DraftsRow(
        "lantern_methods.pjd:LineDrafter",
        (),
        parameters_named("window", "max_drafts"),
        is_sampled=True,
        is_exact=False,
        loop="lantern_methods.pjd:PJDDecoder",
        paper="PJD, arXiv 2606.05703",
    ),
)
declare(
    "pjd",
    PresetRow("PJD", {"drafts": "pjd", "window": 8, "max_drafts": 16}, is_peer=True, is_unverified=True),
)

# Shift heads, and SSD, which drafts lines with them. The lines determine the chain, so that a user names no tree.
declare(
    "heads",
    DraftsRow(
        "lantern_methods.shift_heads:HeadsDrafter",
        trained=_SHIFT_HEADS,
        is_sampled=True,
        paper=f"heads: {_SSD}",
    ),
)
declare(
    "jacobi_heads",
    DraftsRow(
        "lantern_methods.shift_heads:JacobiHeadsDrafter",
        trained=_SHIFT_HEADS,
        is_coupled=True,
        has_twins=True,
        paper=f"{FIXED_NOISE}; heads: {_SSD}",
    ),
)
declare(
    "ssd",
    DraftsRow(
        "lantern_methods.ssd:LinesDrafter",
        (),
        parameters_named("rounds"),
        trained=_SHIFT_HEADS,
        is_sampled=True,
        is_exact=False,
        paper=_SSD,
    ),
)
declare("ssd", PresetRow("SSD", {"drafts": "ssd", "rounds": 2}, is_peer=True, is_unverified=True))
