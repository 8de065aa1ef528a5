"""Expansion of the config's methods, their ids, and what is said of methods that cannot be."""

from __future__ import annotations

import pytest

from lantern.methods import MethodSpec, expand_methods


def expand(*methods, **config):
    base = {"draft_tree": {"static": "chain3"}, "trees": {"mine": [[0]]}, "codebook": {"neighbours": "l2_normalised"}}
    return expand_methods(base | config | {"methods": list(methods)})


def test_lists_expand_to_a_grid():
    runs = expand({"preset": "lantern", "k": [10, 20], "delta": [0.1, 0.4], "temperatures": [0, 1]})
    assert [(run.spec.method_id, run.temperature) for run in runs] == [
        (f"lantern-k{k}-delta{delta:g}", temperature)
        for k in (10, 20)
        for delta in (0.1, 0.4)
        for temperature in (0.0, 1.0)
    ]
    assert runs[0].spec.neighbours == "l2_normalised"


def test_parts_that_depart_from_the_preset_are_in_the_id():
    spec = expand({"preset": "lantern", "tree": "static", "drafts": "sampled", "k": 5, "delta": 0.1})[0].spec
    assert spec.method_id == "lantern-chain3-sampled-k5-delta0.1"
    assert (spec.tree, spec.drafts) == ("chain3", "sampled")


def test_a_method_of_its_own_parts_has_its_own_name():
    entry = {"name": "mine", "tree": "mine", "drafts": "coupled", "relaxation": "proximity", "k": 3}
    assert expand(entry)[0].spec.method_id == "mine-k3"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"preset": "lanturn"}, r"methods\[0\]: preset must be one of autoregressive, .*got 'lanturn'"),
        ({"preset": "eagle1", "tree": "bush"}, r"methods\[0\]: tree must be one of dynamic, chain1.*mine.*got 'bush'"),
        ({"preset": "lantern", "k": 5, "delta": 1.5}, r"delta of lantern must be in \[0, 1\], got 1.5.*lambda_"),
        ({"preset": "lantern_pp", "k": 5, "lambda_": 0.5}, r"lambda_ of lantern_pp must be >= 1, got 0.5"),
        ({"preset": "proximity", "k": 0}, r"k of proximity must be a whole number >= 1, got 0"),
        ({"preset": "lantern", "k": 5}, r"needs delta"),
        ({"preset": "eagle2", "k": 5}, r"takes no k, got 5"),
        ({"preset": "eagle1", "tree": "dynamic"}, r"sampled drafts need a static tree"),
        ({"preset": "bounded", "drafts": "coupled", "k": 5, "delta": 0.1}, r"budget needs drafts top"),
        ({"preset": "proximity", "drafts": "sampled", "k": 5}, r"proximity needs drafts coupled or top"),
        ({"preset": "proximity", "residual": "official", "k": 5}, r"residual official is the authors' code"),
        ({"preset": "proximity", "neighbours": "l1", "k": 5}, r"neighbours of proximity must be one of"),
        ({"tree": "chain3", "drafts": "top"}, r"without a preset needs a name"),
        ({"preset": "eagle1", "drafts": None}, r"must have both tree and drafts"),
    ],
)
def test_bad_entries_name_the_key(entry, message):
    with pytest.raises(ValueError, match=message):
        expand(entry)


def test_a_method_listed_twice_is_refused():
    with pytest.raises(ValueError, match=r"methods\[1\]: eagle1 at temperature 1 is listed twice"):
        expand({"preset": "eagle1"}, {"preset": "eagle1"})


def test_round_trip_through_a_dict():
    spec = expand({"preset": "bounded", "k": 5, "delta": 0.1})[0].spec
    assert MethodSpec(**spec.to_dict()) == spec
