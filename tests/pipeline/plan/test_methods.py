"""Tests of the expansion of the config's methods, their ids and trees, and messages about impossible methods."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import pytest

from helpers.configs import load_config, typed_config
from helpers.paths import ROOT
from lantern.methods import MethodSpec
from lantern.tree_shapes import DynamicTreeOptions, tree_choices
from lantern_pipeline.plan.methods import expand_ablations, expand_methods
from lantern_pipeline.schema.run_config import DraftTree, Grid, GridSampling, Sampling

DYNAMIC = {"num_nodes": 6, "depth": 1, "top_k": 4}
SAMPLING = {"cfg_scale": 3.0, "top_k": 100, "top_p": 1.0, "filter_order": "top_k_first"}
BASE = typed_config(load_config([ROOT / "config.yaml"])).model_copy(
    update={
        "draft_tree": DraftTree(static="chain3", dynamic=DYNAMIC),
        "trees": {"mine": [[0]]},
        "sampling": Sampling(**SAMPLING),
    }
)


def expand(*methods, **changes):
    return expand_methods(BASE.model_copy(update={"methods": list(methods), **changes}))


def expand_grids(**grids):
    typed = {name: grid and Grid.model_construct(**grid) for name, grid in grids.items()}
    ablations = BASE.ablations.model_copy(update={"grids": typed})
    return expand_ablations(BASE.model_copy(update={"ablations": ablations}))


def expand_grid(grid, name="mine"):
    sampling = {"sampling": GridSampling(**grid["sampling"])} if "sampling" in grid else {}
    return expand_grids(**{name: {**grid, **sampling}})[name]


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
    entry = {"name": "mine", "tree": "mine", "drafts": "coupled", "acceptance": "proximity", "k": 3}
    assert expand(entry)[0].spec.method_id == "mine-k3"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"preset": "lanturn"}, "preset .*got 'lanturn'"),
        ({"preset": "eagle1", "tree": "bush"}, "tree .*chain1.*mine.*got 'bush'"),
        ({"preset": "lantern", "k": 5, "delta": 1.5}, "delta .*got 1.5"),
        ({"tree": "chain3", "drafts": "top"}, ".* needs a name"),
        # the names of other rows of the tables
        ({"preset": "lantern_pp", "k": 5, "lambda_": 2, "name": "real"}, "name .*'real'"),
        ({"preset": "jacobi", "name": "autoregressive"}, "name .*'autoregressive', the baseline"),
    ],
)
def test_bad_entries_name_the_key(entry, message):
    with pytest.raises(ValueError, match=rf"^config key methods\[0\]: {message}"):
        expand(entry)
    assert expand({"preset": "autoregressive", "name": "autoregressive"})[0].spec.method_id == "autoregressive"


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("drafts", "class Capped(:", r"SyntaxError: .*own_part\.py, line 1"),
        ("acceptance", "import sys; sys.exit('bye')", "SystemExit: bye"),
        ("drafts", "Capped = 3", "module:Class, got int"),
        ("acceptance", "def Capped(): ...", "module:Class, got function"),
        ("acceptance", "", "module:Class"),
    ],
)
def test_a_fault_of_a_users_own_file_is_one_sentence(tmp_path, monkeypatch, key, text, message):
    (tmp_path / "own_part.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_part", raising=False)
    entry = {"name": "mine", "tree": "chain3", "drafts": "top", "acceptance": "exact"} | {key: "own_part:Capped"}
    with pytest.raises(ValueError, match=message) as caught:
        expand(entry)
    assert str(caught.value).startswith("config key methods[0]: ") and "\n" not in str(caught.value)
    monkeypatch.delitem(sys.modules, "own_part", raising=False)


def test_a_method_listed_twice_is_refused():
    with pytest.raises(ValueError, match=r"methods\[1\]: eagle1 at temperature 1 is listed twice"):
        expand({"preset": "eagle1"}, {"preset": "eagle1"})


def test_round_trip_through_a_dict():
    spec = expand({"preset": "bounded", "k": 5, "delta": 0.1})[0].spec
    assert MethodSpec(**json.loads(json.dumps(asdict(spec)))) == spec
    assert set(asdict(spec)) - set(spec.to_dict()) == {"tree_shape", "parameters", "code"}


def test_a_list_of_presets_is_an_entry_for_each_whatever_the_order_of_its_keys():
    runs = expand({"delta": [0.1, 0.4], "preset": ["lantern", "bounded"], "k": 20})
    assert [run.spec.method_id for run in runs] == [
        "lantern-k20-delta0.1",
        "lantern-k20-delta0.4",
        "bounded-k20-delta0.1",
        "bounded-k20-delta0.4",
    ]
    assert [run.spec.acceptance for run in runs] == ["additive", "additive", "bounded", "bounded"]


def test_a_named_entry_spells_out_what_it_tries_and_nothing_else():
    parts = {"name": "exact", "tree": ["chain3", "mine"], "drafts": ["sampled", "top"], "acceptance": "exact"}
    found = [run.spec.method_id for run in expand(parts)]
    assert found == ["exact-chain3-sampled", "exact-chain3-top", "exact-mine-sampled", "exact-mine-top"]


def test_methods_that_differ_in_one_part_have_ids_of_their_own():
    entry = {"preset": "lantern", "tree": "chain3", "drafts": "sampled", "k": 5, "delta": 0.1}
    for part, values in {
        "acceptance": ["additive", "jensen_shannon"],
        "residual": ["paper", "official", "official_lumina"],
        "neighbours": ["l2", "l2_normalised", "random"],
        "tree": ["chain3", "mine", "mc_sim_7b_63"],
        "k": [1, 2],
        "delta": [0.001, 0.002],
    }.items():
        runs = expand(entry | {part: values})
        assert len({run.spec.method_id for run in runs}) == len(values), part
        assert [run.spec.to_dict()[part] for run in runs] == values


def test_ablations_are_compared_with_autoregressive_decoding_under_the_same_settings():
    points = expand_grid(
        {"methods": [{"preset": ["coupled", "eagle2"], "temperatures": [0, 1]}], "sampling": {"cfg_scale": [1, 3]}}
    )
    assert [(point.sampling["cfg_scale"], point.spec.name, point.temperature) for point in points] == [
        (scale, name, temperature)
        for scale in (1, 3)
        for names in (("autoregressive",), ("coupled", "eagle2"))
        for name in names
        for temperature in (0.0, 1.0)
    ]


def test_sampling_settings_multiply_and_the_others_stay_the_runs():
    points = expand_grid(
        {"methods": [{"preset": "autoregressive"}], "sampling": {"cfg_scale": [1, 5], "top_k": [10, 0], "top_p": 0.9}}
    )
    assert [point.sampling for point in points] == [
        {**SAMPLING, "cfg_scale": scale, "top_k": top_k, "top_p": 0.9} for scale in (1, 5) for top_k in (10, 0)
    ]  # with autoregressive decoding, which was asked for, once


def test_drafters_multiply_the_drafted_methods_only():
    grid = {
        "methods": [{"preset": ["coupled", "jacobi"]}, {"preset": "proximity", "k": 3}],
        "drafter_steps": [40, None],
    }
    assert [(point.spec.method_id, point.drafter_steps) for point in expand_grid(grid)] == [
        ("autoregressive", None),
        ("jacobi", None),
        ("coupled", 40),
        ("proximity-k3", 40),
        ("coupled", None),
        ("proximity-k3", None),
    ]


def test_without_changes_an_ablation_has_the_runs_sampling_and_drafter():
    point = expand_grid({"methods": [{"preset": "coupled"}]})[-1]
    assert (point.spec.method_id, point.temperature, point.sampling, point.drafter_steps) == (
        "coupled",
        1.0,
        SAMPLING,
        None,
    )


def test_an_ablation_that_is_null_is_left_out():
    grids = {"one": None, "two": {"methods": [{"preset": "coupled"}]}}
    assert list(expand_grids(**grids)) == ["two"]
    assert expand_grids(one=None) == {}


def test_a_bad_method_of_an_ablation_names_its_grid():
    for place, methods in enumerate(([{"preset": ["coupled", "coupled"]}], [{"preset": "coupled"}] * 2)):
        with pytest.raises(ValueError, match=rf"^config key ablations\.grids\.trees\.methods\[{place}\]: .*twice"):
            expand_grid({"methods": methods}, name="trees")


def test_a_tree_is_known_by_its_name_or_by_the_config():
    def shape(tree):
        return expand({"preset": "eagle2", "tree": tree})[0].spec.tree_shape

    assert shape("dynamic") == DynamicTreeOptions(**DYNAMIC)
    assert shape("mine") == ((0,),)
    assert shape("static") == shape("chain3") == tree_choices("chain3")
    assert expand({"preset": "autoregressive"})[0].spec.tree_shape is None


def test_words_come_before_numbers_in_the_id_of_a_method():
    (run,) = expand({"preset": "gsd", "h": 5, "coupling": "gumbel"})
    assert run.spec.method_id == "gsd-gumbel-h5"


def test_parameters_of_a_users_class_follow_in_the_order_of_their_names(tmp_path, monkeypatch):
    names = [f"own_{letter}" for letter in "gcafbed"]
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_order", raising=False)
    (tmp_path / "own_order.py").write_text(
        "from lantern.acceptance.base import Acceptance\nfrom lantern.parameters import PARAMETERS, Parameter\n\n"
        "class Own(Acceptance):\n    parameters = {'h': PARAMETERS['h'], "
        f"**{{name: Parameter(name, 'mine') for name in {names}}}}}\n"
    )
    entry = {"name": "mine", "tree": "chain3", "drafts": "sampled", "acceptance": "own_order:Own", "h": 3}
    spec = expand(entry | dict.fromkeys(names, 2))[0].spec
    monkeypatch.delitem(sys.modules, "own_order")
    assert spec.method_id == "-".join(["mine-h3", *(f"{name}2" for name in sorted(names))])
