"""Tests of methods and their parts: presets, trees by name, and which methods keep the tokens."""

from __future__ import annotations

import re
from dataclasses import asdict

import pytest

from helpers.paths import ROOT
from lantern.methods import MethodSpec, make_method
from lantern.parameters import PARAMETERS, Parameter
from lantern.registry import ACCEPTANCE, PRESETS, acceptance_of, drafts_of
from lantern.tree_shapes import DynamicTreeOptions, JointTree, tree_choices

FORM = ["Idea", "Rule", "Exact", "Drafts", "Parameters", "Differs", "Source"]  # of a method in docs/methods.md


def test_a_preset_is_as_published_unless_told_otherwise():
    spec = make_method("lantern_pp", k=5, lambda_=2.0)
    assert (spec.method_id, spec.drafts, spec.neighbours) == ("lantern_pp", "sampled", "l2_normalised")
    assert spec.tree == "naive_extend_57" and spec.tree_shape == tree_choices("naive_extend_57")
    other = make_method("coupled", tree="chain3", method_id="mine")
    assert (other.method_id, other.tree_shape, other.neighbours) == ("mine", ((0,), (0, 0), (0, 0, 0)), None)


def test_the_readmes_table_of_methods_is_that_of_the_presets():
    lines = (ROOT / "README.md").read_text().splitlines()
    table = lines[lines.index("| preset | tree | drafts | relaxation | paper |") + 2 :]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[: table.index("")]]
    presets = {name: row.parts for name, row in PRESETS.items() if not row.is_peer}
    assert [row[0] for row in rows] == [f"`{name}`" for name in presets]
    words = {"sampled": "sampled", "top": "most probable", "coupled": "coupled", None: "–"}
    words |= {"jacobi": "earlier steps", "hybrid": "side by side"}
    for (_, tree, drafts, relaxation, _), parts in zip(rows, presets.values(), strict=True):
        acceptance = parts.get("acceptance", "exact")
        assert tree == parts.get("tree", "–")
        assert words[parts.get("drafts")] in drafts
        is_exact = relaxation.startswith("none") or relaxation == "–"
        assert is_exact == (acceptance == "exact")
        named = {name for name in ("delta", "lambda_") if f"{name}" in relaxation}
        assert named == set(ACCEPTANCE[acceptance].parameters) - {"k"}


def test_the_page_of_methods_has_a_section_of_fixed_form_for_every_preset():
    text = (ROOT / "docs" / "methods.md").read_text()
    sections = [section.partition("\n") for section in re.split(r"^#+ ", text, flags=re.M)]
    for name, row in PRESETS.items():
        if name == "autoregressive":
            continue
        (body,) = [body for heading, _, body in sections if f"`{name}`" in heading]
        items = re.findall(r"^- \*\*(\w+)\*\*:", body, re.M)
        assert {"Idea", "Rule", "Exact", "Drafts", "Source"} <= set(items), name
        assert items == [item for item in FORM if item in items], name
        for part, value in row.parts.items():
            if part == "tree":
                assert f"{value} tree" in body or f"`{value}`" in body, name
            elif part in PARAMETERS:
                assert re.search(rf"`{part}`( \$`[^`]*`\$)? = {value}\b", body), (name, part)
        parts = drafts_of(row.parts.get("drafts")), acceptance_of(row.parts.get("acceptance", "exact"))
        assert all(f"`{parameter}`" in body for part in parts for parameter in part.parameters), name
        assert ("**Unverified**" in body) == row.is_unverified, name


def test_a_tree_is_what_its_name_stands_for_or_what_is_given():
    assert MethodSpec.of("a").tree_shape is None
    assert MethodSpec.of("a", tree="chain2", drafts="top").tree_shape == ((0,), (0, 0))
    assert MethodSpec.of("a", tree="mine", drafts="top", tree_shape=[[0], [1]]).tree_shape == ((0,), (1,))
    assert MethodSpec.of("a", tree="dynamic", drafts="top").tree_shape == DynamicTreeOptions(58, 4, 10)
    options = {"num_nodes": 6, "depth": 1, "top_k": 4}
    assert MethodSpec.of("a", tree="dynamic", drafts="top", tree_shape=options).tree_shape == DynamicTreeOptions(
        6, 1, 4
    )
    joint = JointTree(((0,), (0, 0)), ((0,),))
    assert MethodSpec.of("a", tree="chain2+chain1", drafts="hybrid").tree_shape == joint
    assert MethodSpec.of("a", tree="mine+other", drafts="hybrid", tree_shape=asdict(joint)).tree_shape == joint
    assert tree_choices("chain3k2d1") == ((0,), (1,), (0, 0), (0, 0, 0))
    assert len(tree_choices("chain9k3d2")) == 3 + 9 + 7
    assert tree_choices("chain2x2") == ((0,), (1,), (0, 0), (1, 0))
    with pytest.raises(ValueError, match="tree chain9k40d9 must have at most 256 drafts of one depth"):
        tree_choices("chain9k40d9")


@pytest.mark.parametrize(
    ("drafts", "acceptance", "residual", "temperature", "kept"),
    [
        ("coupled", "exact", "paper", 1.0, True),
        ("top", "exact", "paper", 1.0, True),
        ("top", "exact", "official", 1.0, True),  # nothing is relaxed, so that there is no residual of the authors'
        ("sampled", "exact", "paper", 1.0, False),  # the distribution is kept, not the tokens
        ("sampled", "exact", "paper", 0.0, True),
        ("coupled", "proximity", "paper", 1.0, False),
        ("top", "additive", "official", 0.0, False),
    ],
)
def test_which_methods_keep_the_tokens_of_autoregressive_decoding(drafts, acceptance, residual, temperature, kept):
    parts = {"drafts": drafts, "acceptance": acceptance, "residual": residual}
    parameters = {"additive": {"k": 3, "delta": 0.1}, "proximity": {"k": 3}}.get(acceptance, {})
    spec = MethodSpec.of("a", tree="chain3", **parts, **parameters)
    assert spec.keeps_tokens(temperature) is kept


CONFLICTS = [
    ("sjd", {"coupling": "tight"}, "coupling of sjd must be one of none, gumbel, maximal, got 'tight'"),
    ("sjd", {"labels": None}, "sjd with drafts sjd and acceptance exact needs labels, one of point, uniform"),
    ("sjd", {"drafts": "top"}, "drafts top and acceptance exact takes no coupling, got none"),
    ("sjd", {"tree": "dynamic"}, "sjd drafts need a tree that is static, got dynamic for sjd"),
    ("sjd_pp", {"threshold": -1.0}, "threshold of sjd_pp must be >= 0, got -1.0"),
    ("sjd_pp", {"acceptance": "additive"}, "sjd_pp drafts have their own verification, got acceptance additive"),
    ("path_relax", {"tree": "chain15"}, "that is chains, got chain15 for path_relax"),
    ("cool", {}, "cool with drafts sampled and acceptance weighted needs omega, > 0: mean weight"),
    ("cool", {"omega": 0.0}, "omega of cool must be > 0, got 0.0"),
    ("cool", {"omega": 1.1, "tree": "static"}, "weighted needs a chain, got tree naive_extend_57 for cool"),
    ("cool", {"omega": 1.1, "residual": "paper"}, "weighted needs residual matched, got paper for cool"),
    ("cool", {"omega": 1.1, "drafts": "top"}, "sampled from .*, got top for cool"),
    ("eagle2", {"residual": "matched"}, "matched needs drafts sampled or sjd or heads, got top for eagle2"),
    ("ensemble", {"weight": 0.0}, r"weight of ensemble must be in \(0, 1\], got 0.0"),
    ("mixing", {"budget": 1.5}, r"budget of mixing must be in \[0, 1\], got 1.5"),
    ("mixing", {"budget": 0.1, "drafts": "top"}, "mixing needs drafts that are sampled .*, got top for mixing"),
    ("eagle1", {"omega": 1.1}, "drafts sampled and acceptance exact takes no omega, got 1.1"),
    ("eagle1", {"tree": None}, "drafts sampled of eagle1 need a tree, got none"),
    ("eagle1", {"tree": "mine"}, "tree must be one of dynamic, .*chain1, .*hybrid_100, got 'mine'"),
    ("eagle1", {"drafts": "guessed"}, "drafts must be one of sampled, .*pjd, .*, or my_module:MyClass, got 'guessed'"),
    (
        "eagle1",
        {"acceptance": "no_such_module:Mine"},
        "must name a class as module:Class, of a file next to the overlay",
    ),
    ("autoregressive", {"tree": "chain3"}, "fills no tree with drafts, got tree chain3"),
    ("autoregressive", {"acceptance": "proximity", "k": 3}, "has no tree of drafts to relax, got acceptance proximity"),
    ("hybrid", {"tree": "dynamic"}, "hybrid drafts need a tree that is joint or static, got dynamic for hybrid"),
    ("jacobi", {"tree": "dynamic"}, "jacobi drafts need a tree that is static, got dynamic for jacobi"),
    ("gsd", {"h": 0}, "h of gsd must be an integer >= 1, got 0"),
    ("gsd", {"p_max": 0.0}, "p_max of gsd must be > 0, got 0.0"),
    ("gsd", {"d_max": -1.0}, "d_max of gsd must be > 0, got -1.0"),
    (
        "gsd",
        {"drafts": "top", "coupling": None, "labels": None},
        "group needs drafts that are sampled from a known distribution, got top for gsd",
    ),
    ("gsd", {"residual": "official"}, "residual official needs drafts sampled or top, got sjd for gsd"),
    ("lantern", {"k": 5, "delta": 1.5}, r"delta of lantern must be in \[0, 1\], got 1.5"),
    ("lantern", {"k": 2.5, "delta": 0.1}, "k of lantern must be an integer >= 1, got 2.5"),
    ("lantern", {"k": 5, "delta": 0.1, "neighbours": "cosine"}, "neighbours of lantern must be one of l2, .*'cosine'"),
    ("lantern_pp", {"k": 5, "lambda_": 0.9}, "lambda_ of lantern_pp must be >= 1, got 0.9"),
    ("bounded", {"k": 5, "delta": 0.1, "drafts": "coupled"}, "independent of its noise, got coupled .*choose top"),
    ("proximity", {"k": 5, "drafts": "sampled"}, "known before the target samples, got sampled .*or jacobi or "),
    ("lanturn", {}, "preset must be one of autoregressive, eagle1, .*got 'lanturn'"),
]


@pytest.mark.parametrize(("name", "parts", "message"), CONFLICTS)
def test_what_does_not_go_together_is_refused(name, parts, message):
    with pytest.raises(ValueError, match=message):
        make_method(name, **parts)


def test_parameters_are_read_by_name():
    spec = make_method("lantern", k=5, delta=0.1)
    assert (spec["k"], spec["delta"], spec.get("lambda_"), spec.get("window")) == (5, 0.1, None, None)
    with pytest.raises(KeyError, match="lambda_"):
        _ = spec["lambda_"]
    assert MethodSpec(**asdict(spec)) == spec  # as a job is given it
    assert set(PARAMETERS) < set(spec.to_dict()) and spec.to_dict()["is_exact"] is False


@pytest.mark.parametrize(
    ("parameter", "allowed", "refused", "bound"),
    [
        (
            Parameter("x", "any"),
            (-1e9, -5, 0.0, 1e9),
            (float("nan"), float("-inf"), float("inf"), "1", None, True),
            "a number",
        ),
        (Parameter("x", "any", is_integer=True), (-5, 0, 7), (1.0, "1"), "an integer"),
        (Parameter("x", "from", 2), (2, 2.5), (1.999,), ">= 2"),
        (Parameter("x", "above", 2, is_open=True), (2.001,), (2, 1), "> 2"),
        (Parameter("x", "between", 0, 1), (0, 1, 0.5), (-0.1, 1.1), "in [0, 1]"),
        (Parameter("x", "between", 0, 1, is_open=True), (1, 0.1), (0,), "in (0, 1]"),
        (Parameter("x", "below", high=1), (-9, 1), (1.1,), "in [-inf, 1]"),
        (Parameter("x", "word", choices=("a", "b")), ("a",), ("c", 1, ["a"]), "one of a, b"),
    ],
)
def test_a_parameter_takes_what_its_bounds_say(parameter, allowed, refused, bound):
    assert parameter.bound == bound
    for value in allowed:
        parameter.check("x", value, "mine")
    for value in refused:
        with pytest.raises(
            ValueError, match=rf"^x of mine must be {re.escape(bound)}, got {re.escape(repr(value))}(, which is .*)?$"
        ):
            parameter.check("x", value, "mine")
