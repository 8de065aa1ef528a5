"""Tests of methods restored from rows of tables."""

import math
import sys

import pandas as pd

from lantern.methods import MethodSpec, make_method
from lantern_pipeline.data.tables import method_columns, read_table, write_table
from lantern_pipeline.tables.method_rows import method_of

SPECS = [
    make_method("autoregressive"),
    make_method("lantern", k=5, delta=0.1),
    make_method("hybrid"),
    make_method("zipar"),
    MethodSpec.of("mine", tree="of_a_config", tree_shape=[(0,), (1,)], drafts="coupled", method_id="mine"),
]


def test_rows_answer_what_their_methods_answer(tmp_path):
    write_table(tmp_path / "table.csv", pd.DataFrame([method_columns(spec.to_dict()) for spec in SPECS]))
    rows = [row for _, row in read_table(tmp_path / "table.csv").iterrows()]
    for spec, found in zip(SPECS, map(method_of, rows), strict=True):
        assert found.to_dict() == spec.to_dict() == MethodSpec.from_dict(spec.to_dict()).to_dict()
        assert found.keeps_tokens(1.0) == spec.keeps_tokens(1.0)


def test_a_row_has_the_parameters_of_a_users_class(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_row_part.py").write_text(
        "from lantern.parameters import Parameter\n"
        "class Own:\n    parameters, make = {'cap': Parameter('cap', 'mine', is_integer=True)}, None\n"
    )
    spec = MethodSpec.of("mine", tree="chain3", drafts="sampled", acceptance="own_row_part:Own", cap=2)
    row = {**method_columns(spec.to_dict()), "cap": 2.0, "nll": 3.0, "delta": math.nan}
    assert method_of(row) == MethodSpec.from_dict(spec.to_dict()) and method_of(row)["cap"] == 2
    monkeypatch.delitem(sys.modules, "own_row_part")
