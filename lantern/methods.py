"""Decoding methods as combinations of parts: tree x drafts x relaxation, with named presets.

Read while Snakemake builds the workflow: no torch here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lantern.tree_shapes import DynamicTreeOptions, JointTree, TreeShape, joint_choices, tree_choices

COUPLED = ("coupled", "jacobi", "hybrid")  # drafts that the target's own noise picks
DRAFTS_WITHOUT_MODEL = ("jacobi", "sjd")  # drafts that the target makes itself
SAMPLED = ("sampled", "sjd")  # drafts drawn from a known distribution with noise of their own: judged by rejection
DRAFTS = (*SAMPLED, "top", *COUPLED)  # what a node's children are
OFFICIAL_RESIDUALS = ("official", "official_lumina")
RESIDUALS = ("paper", *OFFICIAL_RESIDUALS, "matched")
NEIGHBOURS = ("l2", "l2_normalised", "probability", "random")

# Parts of each preset; "static" stands for the config's draft_tree.static.
PRESETS: dict[str, dict[str, Any]] = {
    "autoregressive": {"tree": None, "drafts": None, "relaxation": "none"},
    "eagle1": {"tree": "static", "drafts": "sampled", "relaxation": "none"},
    "eagle2": {"tree": "dynamic", "drafts": "top", "relaxation": "none"},
    "lantern": {"tree": "dynamic", "drafts": "top", "relaxation": "additive"},
    "lantern_pp": {"tree": "static", "drafts": "sampled", "relaxation": "multiplicative"},
    "coupled": {"tree": "static", "drafts": "coupled", "relaxation": "none"},
    "proximity": {"tree": "static", "drafts": "coupled", "relaxation": "proximity"},
    "bounded": {"tree": "dynamic", "drafts": "top", "relaxation": "bounded"},
    "jacobi": {"tree": "chain9", "drafts": "jacobi", "relaxation": "none"},
    "hybrid": {"tree": "chain9+chain3", "drafts": "hybrid", "relaxation": "none"},
}
# Of SJD drafts: how a draft is drawn anew, which drafts places begin with, and what these are taken to be drawn from.
SJD_PARTS = {
    "coupling": ("none", "gumbel", "maximal"),
    "initial": ("random", "repeat", "sample"),
    "labels": ("point", "uniform"),
}
_SJD = {"tree": "chain15", "drafts": "sjd", "relaxation": "none", "coupling": "none"}
_SJD |= {"initial": "random", "labels": "point"}
# Methods of others than EAGLE and LANTERN, with their published parameters.
PEERS: dict[str, dict[str, Any]] = {
    "cool": {"tree": "chain5", "drafts": "sampled", "relaxation": "annealed", "residual": "matched"},
    "sjd": _SJD,
    "scd_gumbel": {**_SJD, "coupling": "gumbel"},
    "scd": {**_SJD, "coupling": "maximal"},
    "sjd_pp": {**_SJD, "relaxation": "threshold", "threshold": 0.5},
    "sjd_pac": {**_SJD, "tree": "chain15k3d2", "coupling": "maximal", "labels": "uniform"},
    "path_relax": {**_SJD, "tree": "chain11x2", "relaxation": "longest_chain", "delta": 0.01},
    "gsd": {**_SJD, "relaxation": "group", "h": 7, "p_max": 0.15, "d_max": 0.5},
    "zipar": {"tree": None, "drafts": None, "relaxation": "parallel_lines", "window": 16},
}
PRESETS |= PEERS


@dataclass(frozen=True)
class RelaxationParts:
    """What a relaxation goes with; the relaxation itself is the class of that name in `lantern.relaxation`.

    Attributes:
        parameters: those that it takes, of PARAMETERS; the others must not be given.
        drafts: the kinds of drafts that it goes with.
        has_official: whether the authors' code has it, so that their residuals exist.
        reason: why other drafts are refused, as the end of a sentence.
        is_weight: whether it weighs the drafts of a chain by their place, which needs a chain and the matched residual.
        is_of_drafts: whether it belongs to a drafter: to one whose drafts do not follow the distributions that they are
            judged by, so that the law at a node is not known, or to one that drafts nothing.
    """

    parameters: tuple[str, ...] = ()
    drafts: tuple[str, ...] = DRAFTS
    has_official: bool = True
    reason: str = ""
    is_weight: bool = False
    is_of_drafts: bool = False


_WEIGHT = RelaxationParts(("omega",), SAMPLED, has_official=False, is_weight=True)
PEER_PARAMETERS = ("omega", "h", "p_max", "d_max", "threshold", "window")
PARAMETERS = ("k", "delta", "lambda_", *PEER_PARAMETERS)
RELAXATIONS = {
    "none": RelaxationParts(),
    "additive": RelaxationParts(("k", "delta")),
    "jensen_shannon": RelaxationParts(("k", "delta")),
    "multiplicative": RelaxationParts(("k", "lambda_")),
    "bounded": RelaxationParts(("k", "delta"), ("top",), has_official=False, reason="; only there delta bounds TV"),
    "proximity": RelaxationParts(("k",), ("coupled", "top", "jacobi", "hybrid"), has_official=False),
    "annealed": _WEIGHT,
    "constant": _WEIGHT,
    "reversed": _WEIGHT,
    "group": RelaxationParts(("h", "p_max", "d_max"), SAMPLED, has_official=False),
    "threshold": RelaxationParts(("threshold",), ("sjd",), has_official=False, is_of_drafts=True),
    "public_labels": RelaxationParts((), ("sjd",), has_official=False, is_of_drafts=True),
    "public_tree": RelaxationParts((), ("sjd",), has_official=False, is_of_drafts=True),
    "longest_chain": RelaxationParts(("delta",), ("sjd",), has_official=False, is_of_drafts=True),
    "parallel_lines": RelaxationParts(("window",), (), has_official=False, reason="; remove them", is_of_drafts=True),
    "public_lines": RelaxationParts(("window",), (), has_official=False, reason="; remove them", is_of_drafts=True),
}


@dataclass(frozen=True)
class MethodSpec:
    """One decoding method with its parameters.

    Attributes:
        name: preset or a name of the config's choice.
        tree: "dynamic", or the name of a static tree, or two of them as "chain9+chain3" (Jacobi's and the draft
            model's) for hybrid drafts, or "tuned" for one that a run chooses; None for autoregressive decoding.
        drafts: "sampled", "top" or "coupled" ones of a draft model; "jacobi", the target's own draws of the last step;
            "hybrid", Jacobi drafts and coupled ones of a draft model side by side; "sjd", draws of the target's
            distributions of the last step, judged by rejection; None for autoregressive decoding.
        relaxation: a name of RELAXATIONS; "none" is exact.
        residual: "paper", or what the authors' code does: "official" for LlamaGen, "official_lumina"; or "matched",
            which leaves the least total variation from the target that the acceptance allows.
        neighbours: which nearest codes, one of NEIGHBOURS; None where the relaxation takes no k.
        k: nearest codes; None where the relaxation takes none.
        delta: additive bound or budget, probability mass in [0, 1], or Jensen-Shannon bound in bits; None elsewhere.
        lambda_: multiplicative bound, >= 1; None elsewhere.
        omega: mean weight of a chain's drafts in the test of acceptance, > 0; None elsewhere.
        h: half the width of a group of codes, ranks >= 1; None elsewhere.
        p_max: in a group, differences of probabilities are below it, > 0; None elsewhere.
        d_max: in a group, squared distances of embeddings are below it, > 0; None elsewhere.
        threshold: t(x) / p(x) above which relaxation "threshold" keeps a draft, >= 0; None elsewhere.
        window: tokens of a line of the image that are drawn before the next line begins, >= 1; None unless lines are
            drawn in parallel.
        coupling: how SJD drafts follow those of the step before: "none" draws them anew, "gumbel" with the noise of
            their place, "maximal" keeps as many as can be; None for others.
        initial: SJD drafts of places that have none: "random" codes, "repeat" the token before, "sample" the most
            probable one there; None for others.
        labels: what those are taken to be drawn from: "point" of no choice, "uniform" of all codes; None for others.
        method_id: unique within a config, safe as a file name.
        tree_shape: choices of the static tree, or options of the dynamic one (also as JSON values); by default what
            the name `tree` stands for. None for autoregressive decoding, and for a tuned tree not chosen yet.

    Raises:
        ValueError: parts that do not go together, a parameter missing, foreign or out of range, a tree of an unknown
            name and no shape.
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
    omega: float | None = None
    h: int | None = None
    p_max: float | None = None
    d_max: float | None = None
    threshold: float | None = None
    window: int | None = None
    coupling: str | None = None
    initial: str | None = None
    labels: str | None = None
    method_id: str = ""
    tree_shape: TreeShape | Mapping[str, int] | Sequence[Sequence[int]] | None = None

    def __post_init__(self) -> None:
        _check_parts(self)
        _check_parameters(self)
        _check_sjd(self)
        object.__setattr__(self, "tree_shape", _shape_of(self))
        _check_weights(self)

    @property
    def is_relaxed(self) -> bool:
        """Whether the output distribution may depart from the target's."""
        return self.relaxation != "none"

    @property
    def needs_draft_model(self) -> bool:
        """Whether a draft model makes the drafts, or some of them."""
        return self.drafts not in (None, *DRAFTS_WITHOUT_MODEL)

    def to_dict(self) -> dict[str, Any]:
        """What records and tables keep of a method, as JSON values: all fields but the tree's shape."""
        fields = asdict(self)
        del fields["tree_shape"]
        return fields


def make_method(name: str, **parts: Any) -> MethodSpec:
    """A preset of PRESETS as it is published, with naive_extend_57 for its static tree.

    Args:
        name: of the preset, for example "lantern".
        parts: parameters that it needs and parts that it shall differ in, for example k=100, delta=0.1; the neighbours
            of a relaxation are l2_normalised unless given.

    Raises:
        ValueError: unknown preset, or as `MethodSpec`.
    """
    if name not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
    parts = {**PRESETS[name], "method_id": name, **parts}
    if parts["tree"] == "static":
        parts["tree"] = "naive_extend_57"
    if takes_neighbours(parts["relaxation"]):
        parts.setdefault("neighbours", "l2_normalised")
    return MethodSpec(name=name, **parts)


def takes_neighbours(relaxation: str) -> bool:
    """Whether a relaxation, a name of RELAXATIONS or any other, takes nearest codes."""
    return relaxation in RELAXATIONS and "k" in RELAXATIONS[relaxation].parameters


def verifies_by_rejection(method: Mapping[str, Any]) -> bool:
    """Whether, above temperature 0, children are tried one after the other instead of being compared with a token that
    the target draws.

    Args:
        method: its drafts, relaxation and residual, as `MethodSpec.to_dict` names them.
    """
    return method["drafts"] in SAMPLED or (method["residual"] != "paper" and method["relaxation"] != "none")


def draws_target_tokens(method: Mapping[str, Any], temperature: float) -> bool:
    """Whether the target draws a token of its own at every node: only then is a substitution defined. `method` as in
    `verifies_by_rejection`.
    """
    return temperature == 0 or not verifies_by_rejection(method)


def keeps_tokens(method: Mapping[str, Any], temperature: float) -> bool:
    """Whether the images equal autoregressive decoding's token for token, not in distribution alone. `method`
    as in `verifies_by_rejection`.
    """
    return method["relaxation"] == "none" and draws_target_tokens(method, temperature)


def _check_parts(spec: MethodSpec) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", spec.name):
        raise ValueError(f"a method's name must be lower-case letters, digits and _, got {spec.name!r}")
    for field, known in (("relaxation", RELAXATIONS), ("residual", RESIDUALS)):
        if getattr(spec, field) not in known:
            raise ValueError(f"{field} of {spec.name} must be one of {', '.join(known)}, got {getattr(spec, field)!r}")
    if (spec.tree is None) != (spec.drafts is None):
        raise ValueError(f"method {spec.name} must have both tree and drafts, or neither (autoregressive)")
    if spec.drafts is None:
        if spec.is_relaxed and RELAXATIONS[spec.relaxation].drafts:
            raise ValueError(f"method {spec.name} relaxes drafts but has none; set tree and drafts")
        return
    _check_drafts(spec)


def _check_drafts(spec: MethodSpec) -> None:
    if spec.drafts not in DRAFTS:
        raise ValueError(f"drafts of {spec.name} must be one of {', '.join(DRAFTS)}, got {spec.drafts!r}")
    if spec.drafts == "sjd" and spec.tree == "tuned":
        raise ValueError(f"trees of sjd drafts are not tuned, got tree tuned for {spec.name}; name one, as in chain15")
    if spec.drafts in ("sampled", "jacobi", "hybrid", "sjd") and spec.tree == "dynamic":
        raise ValueError(
            f"{spec.drafts} drafts need a static tree, got tree dynamic for {spec.name}; use top or coupled drafts"
        )
    relaxation = RELAXATIONS[spec.relaxation]
    if spec.drafts not in relaxation.drafts:
        raise ValueError(
            f"relaxation {spec.relaxation} needs drafts {' or '.join(relaxation.drafts)}, got {spec.drafts} for "
            f"{spec.name}{relaxation.reason}"
        )
    if spec.residual == "matched" and spec.drafts not in SAMPLED:
        raise ValueError(
            f"residual matched needs drafts {' or '.join(SAMPLED)}, got {spec.drafts} for {spec.name}; where a draft "
            "is known before the target draws, residual paper leaves the least total variation already"
        )
    is_official = spec.residual in OFFICIAL_RESIDUALS
    if is_official and (spec.drafts not in ("sampled", "top") or not relaxation.has_official):
        raise ValueError(
            f"residual {spec.residual} is the authors' code, which has no such method as {spec.name}; use paper"
        )


def _check_parameters(spec: MethodSpec) -> None:
    wanted = RELAXATIONS[spec.relaxation].parameters
    for name in PARAMETERS:
        value = getattr(spec, name)
        if name in wanted and value is None:
            raise ValueError(f"method {spec.name} with relaxation {spec.relaxation} needs {name}")
        if name not in wanted and value is not None:
            raise ValueError(f"method {spec.name} with relaxation {spec.relaxation} takes no {name}, got {value}")
    if spec.k is not None and (spec.k != int(spec.k) or spec.k < 1):
        raise ValueError(
            f"k of {spec.name} must be a whole number >= 1, got {spec.k}; for exact decoding use relaxation none"
        )
    if spec.window is not None and (spec.window != int(spec.window) or spec.window < 1):
        raise ValueError(f"window of {spec.name} must be a whole number >= 1, got {spec.window}")
    check_bounds(spec.delta, spec.lambda_, f" of {spec.name}")
    check_group(spec.h, spec.p_max, spec.d_max, f" of {spec.name}")
    if takes_neighbours(spec.relaxation) and spec.neighbours not in NEIGHBOURS:
        raise ValueError(f"neighbours of {spec.name} must be one of {', '.join(NEIGHBOURS)}, got {spec.neighbours!r}")


def _check_weights(spec: MethodSpec) -> None:
    if not RELAXATIONS[spec.relaxation].is_weight:
        return
    if not spec.omega > 0:
        raise ValueError(f"omega of {spec.name} must be > 0, got {spec.omega}; 1 is exact where relaxation is constant")
    if spec.residual != "matched":
        raise ValueError(
            f"relaxation {spec.relaxation} needs residual matched, got {spec.residual} for {spec.name}: with another "
            "one, a weight below 1 would emit some codes too rarely"
        )
    if not isinstance(spec.tree_shape, tuple) or any(map(any, spec.tree_shape)):
        raise ValueError(
            f"relaxation {spec.relaxation} needs a chain, got tree {spec.tree} for {spec.name}: there are no weights "
            "for siblings"
        )


def _check_sjd(spec: MethodSpec) -> None:
    for name, known in SJD_PARTS.items():
        value = getattr(spec, name)
        if spec.drafts == "sjd" and value not in known:
            raise ValueError(f"{name} of {spec.name} must be one of {', '.join(known)}, got {value!r}")
        if spec.drafts != "sjd" and value is not None:
            raise ValueError(f"method {spec.name} with drafts {spec.drafts} takes no {name}, got {value}; remove it")
    if spec.labels == "uniform" and spec.initial != "random":
        raise ValueError(f"labels uniform of {spec.name} are those of initial random, got {spec.initial}; use point")
    needed = {"threshold": "none", "public_labels": "maximal", "public_tree": "maximal", "longest_chain": "none"}
    wanted = needed.get(spec.relaxation, spec.coupling)
    if spec.coupling != wanted:
        raise ValueError(
            f"relaxation {spec.relaxation} needs coupling {wanted}, got {spec.coupling} for {spec.name}; set it"
        )
    if spec.relaxation == "longest_chain" and not re.fullmatch(r"chain\d+x\d+", spec.tree):
        raise ValueError(f"relaxation longest_chain needs a tree like chain11x2, got {spec.tree} for {spec.name}")
    if (spec.threshold or 0) < 0:
        raise ValueError(f"threshold of {spec.name} must be >= 0, got {spec.threshold}; 0 keeps all that is possible")


def check_bounds(delta: float | None = None, lambda_: float | None = None, owner: str = "") -> None:
    """Checks the bounds that a relaxation takes.

    Args:
        delta: probability mass, or bits; None is no bound.
        lambda_: factor; None is no bound.
        owner: " of " and the method's name, for the message.

    Raises:
        ValueError: delta outside [0, 1] or lambda_ < 1.
    """
    if delta is not None and not 0 <= delta <= 1:
        raise ValueError(f"delta{owner} must be in [0, 1], got {delta}; for the multiplicative bound set lambda_")
    if lambda_ is not None and lambda_ < 1:
        raise ValueError(f"lambda_{owner} must be >= 1, got {lambda_}; 1 is exact, for the additive bound set delta")


def check_group(h: int | None = None, p_max: float | None = None, d_max: float | None = None, owner: str = "") -> None:
    """Checks the bounds of a group of codes, as `check_bounds`.

    Raises:
        ValueError: h that is no whole number >= 1, p_max or d_max that is not > 0.
    """
    if h is not None and (h != int(h) or h < 1):
        raise ValueError(f"h{owner} must be a whole number >= 1, got {h}; for exact decoding use relaxation none")
    for name, value in (("p_max", p_max), ("d_max", d_max)):
        if value is not None and not value > 0:
            raise ValueError(f"{name}{owner} must be > 0, got {value}; for exact decoding use relaxation none")


def _shape_of(spec: MethodSpec) -> TreeShape | None:
    shape = spec.tree_shape
    if spec.tree is None or isinstance(shape, DynamicTreeOptions | JointTree) or (spec.tree, shape) == ("tuned", None):
        return shape
    if spec.drafts == "hybrid":
        if isinstance(shape, Mapping):
            return JointTree(**{part: tuple(map(tuple, choices)) for part, choices in shape.items()})
        return joint_choices(spec.tree)
    if spec.tree == "dynamic":
        return DynamicTreeOptions(**(shape or {}))
    return tree_choices(spec.tree, None if shape is None else {spec.tree: shape})
