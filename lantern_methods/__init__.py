"""Methods beyond EAGLE, LANTERN, LANTERN++ and Jacobi chains: one file each, and here the rows that declare them.

`lantern.registry` imports this module when it looks for a method that the core lacks. Snakemake does so to plan the
workflow, so the rows are not in the files of the methods, which import torch.
"""

from lantern.parameters import ParameterValue, parameters_named
from lantern.registry import FIXED_NOISE, AcceptanceRow, DraftsRow, PresetRow, ResidualRow, declare

_SSD = "SSD, arXiv 2606.20543"
_SHIFT_HEADS = {"heads": "lantern_methods.shift_heads:ShiftHeads"}

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
