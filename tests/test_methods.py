"""Methods by their parts: presets, the tree that a name stands for, and what a method's parts say about its tokens."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from conftest import ROOT
from lantern.methods import PEERS, PRESETS, RELAXATIONS, MethodSpec, keeps_tokens, make_method
from lantern.tree_shapes import DynamicTreeOptions, JointTree, tree_choices


def test_a_preset_is_as_published_unless_told_otherwise():
    spec = make_method("lantern_pp", k=5, lambda_=2.0)
    assert (spec.method_id, spec.drafts, spec.neighbours) == ("lantern_pp", "sampled", "l2_normalised")
    assert spec.tree == "naive_extend_57" and spec.tree_shape == tree_choices("naive_extend_57")
    other = make_method("coupled", tree="chain3", method_id="mine")
    assert (other.method_id, other.tree_shape, other.neighbours) == ("mine", ((0,), (0, 0), (0, 0, 0)), None)


def test_the_readmes_table_of_methods_is_that_of_the_presets():
    lines = (ROOT / "README.md").read_text().splitlines()
    table = lines[lines.index("| preset | tree | guesses | look-alikes that may stand in |") + 2 :]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[: table.index("")]]
    presets = {name: parts for name, parts in PRESETS.items() if name not in PEERS}
    assert [row[0].removesuffix(" (ours)") for row in rows] == [f"`{name}`" for name in presets]
    words = {"sampled": "sampled", "top": "most probable", "coupled": "the target's own noise|coupled", None: "–"}
    words |= {"jacobi": "the step before", "hybrid": "side by side"}
    for (_, tree, guesses, stands_in), parts in zip(rows, presets.values(), strict=True):
        assert tree == (parts["tree"] or "–")
        assert any(word in guesses for word in words[parts["drafts"]].split("|"))
        is_exact = "exact" in stands_in or stands_in == "–"
        assert is_exact == (parts["relaxation"] == "none")
        named = {name for name in ("delta", "lambda_") if f"{name}" in stands_in}
        assert named == set(RELAXATIONS[parts["relaxation"]].parameters) - {"k"}


def test_the_table_of_peers_is_that_of_their_presets():
    lines = (ROOT / "docs" / "methods.md").read_text().splitlines()
    table = lines[lines.index("| preset | tree | guesses | law of what is emitted | source |") + 2 :]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[: table.index("")]]
    assert [(row[0], row[1]) for row in rows] == [(f"`{name}`", parts["tree"] or "–") for name, parts in PEERS.items()]
    assert all(any(line.startswith("### ") and f"({row[0]}" in line for line in lines) for row in rows)


def test_an_unknown_preset_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"preset must be one of autoregressive, eagle1, .*got 'lanturn'"):
        make_method("lanturn")


def test_a_tree_is_what_its_name_stands_for_or_what_is_given():
    assert MethodSpec("a").tree_shape is None
    assert MethodSpec("a", "chain2", "top").tree_shape == ((0,), (0, 0))
    assert MethodSpec("a", "mine", "top", tree_shape=[[0], [1]]).tree_shape == ((0,), (1,))
    assert MethodSpec("a", "dynamic", "top").tree_shape == DynamicTreeOptions(58, 4, 10)
    options = {"num_nodes": 6, "depth": 1, "top_k": 4}
    assert MethodSpec("a", "dynamic", "top", tree_shape=options).tree_shape == DynamicTreeOptions(6, 1, 4)
    joint = JointTree(((0,), (0, 0)), ((0,),))
    assert MethodSpec("a", "chain2+chain1", "hybrid").tree_shape == joint
    assert MethodSpec("a", "mine", "hybrid", tree_shape=asdict(joint)).tree_shape == joint
    assert tree_choices("chain3k2d1") == ((0,), (1,), (0, 0), (0, 0, 0))
    assert len(tree_choices("chain9k3d2")) == 3 + 9 + 7
    assert tree_choices("chain2x2") == ((0,), (1,), (0, 0), (1, 0))
    with pytest.raises(ValueError, match="tree chain9k40d9 must have at most 256 drafts of one depth; give it fewer"):
        tree_choices("chain9k40d9")


def test_a_tuned_tree_has_no_shape_until_one_is_given():
    assert MethodSpec("a", "tuned", "coupled").tree_shape is None
    assert MethodSpec("a", "tuned", "hybrid").tree_shape is None
    assert MethodSpec("a", "tuned", "coupled", tree_shape=[[0], [0, 0]]).tree_shape == ((0,), (0, 0))
    with pytest.raises(ValueError, match=r"tree must be one of .*tuned.*got 'tuned'"):
        tree_choices("tuned")


def test_hybrid_drafts_name_two_static_trees():
    with pytest.raises(ValueError, match=r"must be two static trees as in chain9\+chain3, .* got 'chain9'"):
        MethodSpec("a", "chain9", "hybrid")
    with pytest.raises(ValueError, match="jacobi drafts need a static tree, got tree dynamic for a"):
        MethodSpec("a", "dynamic", "jacobi")
    with pytest.raises(ValueError, match=r"tree must be one of dynamic, chain1, .*mc_sim_7b_63, got 'mine'"):
        MethodSpec("a", "mine", "top")


@pytest.mark.parametrize(
    ("drafts", "relaxation", "residual", "temperature", "kept"),
    [
        ("coupled", "none", "paper", 1.0, True),
        ("top", "none", "paper", 1.0, True),
        ("top", "none", "official", 1.0, True),  # nothing is relaxed, so that there is no residual of the authors'
        ("sampled", "none", "paper", 1.0, False),  # the distribution is kept, not the tokens
        ("sampled", "none", "paper", 0.0, True),
        ("coupled", "proximity", "paper", 1.0, False),
        ("top", "additive", "official", 0.0, False),
    ],
)
def test_which_methods_keep_the_tokens_of_autoregressive_decoding(drafts, relaxation, residual, temperature, kept):
    method = {"drafts": drafts, "relaxation": relaxation, "residual": residual}
    assert keeps_tokens(method, temperature) is kept


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"coupling": "tight"}, "coupling of sjd must be one of none, gumbel, maximal, got 'tight'"),
        ({"labels": "uniform", "initial": "repeat"}, "labels uniform of sjd are those of initial random, got repeat"),
        ({"relaxation": "public_labels"}, "relaxation public_labels needs coupling maximal, got none for sjd; set it"),
        ({"relaxation": "public_tree"}, "relaxation public_tree needs coupling maximal, got none for sjd; set it"),
        ({"relaxation": "threshold"}, "method sjd with relaxation threshold needs threshold"),
        ({"relaxation": "threshold", "threshold": -1.0}, "threshold of sjd must be >= 0, got -1.0; 0 keeps all"),
        ({"drafts": "top"}, "method sjd with drafts top takes no coupling, got none; remove it"),
        ({"tree": "tuned"}, "trees of sjd drafts are not tuned, got tree tuned for sjd; name one, as in chain15"),
        ({"relaxation": "longest_chain", "delta": 0.1}, "longest_chain needs a tree like chain11x2, got chain15 for"),
        ({"tree": "dynamic"}, "sjd drafts need a static tree, got tree dynamic for sjd; use top or coupled drafts"),
    ],
)
def test_parts_of_sjd_drafts_are_checked(parts, message):
    with pytest.raises(ValueError, match=message):
        make_method("sjd", **parts)
