"""Tests of labels: a method has the same label in every table and figure."""

import json
import sys
from collections import defaultdict

import pandas as pd

from helpers.configs import load_config, typed_config
from helpers.paths import ROOT
from lantern.methods import MethodSpec, make_method
from lantern.registry import PRESETS, PresetRow
from lantern_pipeline.data.tables import method_columns, read_table
from lantern_pipeline.plan.methods import expand_ablations, expand_methods
from lantern_pipeline.plan.validate import load_yaml
from lantern_pipeline.tables.method_labels import (
    PARTS,
    SYMBOLS,
    custom_parameters,
    label_family,
    label_method,
    label_rows,
    method_name,
)

PUBLISHED = ("peers", "mixing", "ablations")


def nature_of(row):
    """Return the cells that define a method, without its name."""
    parts = [None if pd.isna(row[name]) else row[name] for name in PARTS]
    values = [row.get(name) for name in SYMBOLS]  # a published table may be older than a parameter
    return json.dumps([*parts, *(None if pd.isna(value) else float(value) for value in values)])


def published_methods():
    for name in (None, *PUBLISHED):
        overlays = [ROOT / "experiments" / f"{name}.yaml"] if name else []
        config = typed_config(load_config([ROOT / "config.yaml", *overlays]))
        specs = [run.spec for run in expand_methods(config)]
        specs += [point.spec for points in expand_ablations(config).values() for point in points]
        yield from (method_columns(spec.to_dict()) for spec in specs)
    for name in ("results", "peers", "mixing", "generality", "targets"):
        table = read_table(ROOT / "docs" / f"{name}.csv")
        yield from (row for _, row in table[~table["method"].isin(("real", "reconstruction"))].iterrows())


def test_a_label_holds_what_differs_within_everything_published():
    labels, methods = defaultdict(set), defaultdict(set)
    for row in published_methods():
        labels[nature_of(row)].add(label_method(row))
        methods[label_method(row)].add(nature_of(row))
    assert len(labels) > 80
    assert {nature: found for nature, found in labels.items() if len(found) > 1} == {}
    assert {label: found for label, found in methods.items() if len(found) > 1} == {}


LANTERN = {"k": 20, "delta": 0.1}
CASES = [
    ("LANTERN k 20, δ 0.1", "lantern", {**LANTERN}),
    ("LANTERN chain5 k 20, δ 0.1", "lantern", {**LANTERN, "tree": "chain5", "drafts": "sampled"}),
    ("LANTERN (chain9, jacobi) k 20, δ 0.1", "lantern", {**LANTERN, "tree": "chain9", "drafts": "jacobi"}),
    ("LANTERN (random) k 20, δ 0.1", "lantern", {**LANTERN, "neighbours": "random"}),
    ("EAGLE-1 (chain3)", "eagle1", {"tree": "chain3"}),
    ("EAGLE-2 (dynamic 58)", "eagle2", {"tree": "dynamic58k10d4"}),
    ("LANTERN (dynamic 6) k 20, δ 0.1", "lantern", {**LANTERN, "tree": "dynamic6k4d1"}),
    ("EAGLE-1 (static 57)", "eagle1", {}),
    ("Jacobi (chain9)", "jacobi", {"tree": "chain9"}),
    ("SCD, Gumbel (chain9)", "scd_gumbel", {"tree": "chain9"}),
    ("COOL-SD ω 2", "cool", {"omega": 2}),
    ("COOL-SD ω 2, fall 0", "cool", {"fall": 0, "omega": 2}),
    ("ensemble w 0.8", "ensemble", {"weight": 0.8}),
    ("mixing (chain3) budget 0.1", "mixing", {"budget": 0.1, "tree": "chain3"}),
    ("PathRelax", "path_relax", {}),
    ("PathRelax (chain9x2) δ 0.3", "path_relax", {"tree": "chain9x2", "delta": 0.3}),
    ("GSD d² 10000", "gsd", {"d_max": 10000}),
    ("PJD (unverified) w 2", "pjd", {"window": 2}),
    ("SSD (unverified)", "ssd", {}),
]


def test_a_label_names_what_departs_from_the_preset():
    for label, preset, parts in CASES:
        method = make_method(preset, **parts).to_dict()
        assert label_method(method) == label == label_method(method_columns(method))


def test_names_and_colours_of_the_users_own_methods():
    sjd = make_method("sjd", tree="chain9", acceptance="additive", **LANTERN).to_dict()
    assert label_method({**sjd, "name": "lantern_sjd"}) == "LANTERN (chain9, sjd) k 20, δ 0.1"
    mine = MethodSpec.of("my_own", tree="chain3", drafts="coupled").to_dict()
    assert label_method(mine) == "my own (chain3, coupled)" and label_family(method_columns(mine)) == label_method(mine)
    assert method_name("lantern_chain") == "LANTERN chain"


def test_a_name_that_only_begins_like_a_ceilings_is_a_methods():
    assert method_name("lantern_pp_fast") == "LANTERN++" and method_name("lanterns") == "lanterns"
    assert method_name("real_fast") == "real fast" and method_name("real") == "real images"


def test_rows_of_a_table_have_the_labels_of_their_methods():
    """Cells of parts that a method lacks are empty."""
    methods = [make_method(name).to_dict() for name in ("autoregressive", "eagle2")]
    methods += [make_method("lantern", **LANTERN).to_dict(), make_method("zipar", window=2).to_dict()]
    rows = pd.DataFrame([*map(method_columns, methods), {"method": "real"}, {"method": "reconstruction"}])
    labels = label_rows(rows.set_index(pd.Index([7, 3, 5, 1, 2, 0])))
    assert list(labels.index) == [7, 3, 5, 1, 2, 0] and labels.tolist() == [
        *("autoregressive", "EAGLE-2", "LANTERN k 20, δ 0.1", "ZipAR w 2", "real images", "reconstructions")
    ]


def test_what_is_unsaid_is_the_default():
    config = load_yaml(ROOT / "config.yaml")
    assert config["codebook"]["neighbours"] == "l2_normalised"


def test_own_parameters_are_those_that_users_classes_add(tmp_path, monkeypatch):
    """They are in the order of the names of the classes. Lantern's parameters have columns already."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_parts", raising=False)
    lines = ["from lantern.parameters import PARAMETERS, Parameter", ""]
    for letter in "CADB":
        own = f"'cap_{letter}': Parameter('cap {letter}', 'mine'), 'k': PARAMETERS['k']"
        lines += [f"class {letter}:", f"    parameters, make = {{{own}}}, None", ""]
    (tmp_path / "own_parts.py").write_text("\n".join(lines))
    classes = [f"own_parts:{letter}" for letter in "CADB"]
    found = custom_parameters(pd.DataFrame({"drafts": ["top", *classes[:3]], "acceptance": ["exact", *classes[1:]]}))
    monkeypatch.delitem(sys.modules, "own_parts")
    assert list(found.items()) == [(f"cap_{letter}", f"cap {letter}") for letter in "ABCD"]
    assert (
        custom_parameters(pd.DataFrame({"drafts": ["top"]}))
        == custom_parameters(pd.DataFrame({"method": ["real"]}))
        == {}
    )


def test_every_preset_has_a_label_of_its_own(monkeypatch):
    labels = {name: method_name(name) for name in (*PRESETS, "lantern_chain")}
    assert all(labels.values()) and len(set(labels.values())) == len(labels)
    assert (labels["gsd"], labels["lantern_chain"]) == ("GSD", "LANTERN chain")
    monkeypatch.setitem(PRESETS._rows, "plain", PresetRow("Plain++", {}))
    assert method_name("plain") == "Plain++"
