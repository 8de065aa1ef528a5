"""What several figures share."""

import numpy as np
import pandas as pd
import pytest
import torch

from figure_tables import AUTOREGRESSIVE, COUPLED, PROXIMITY, SAMPLED, make_records
from lantern_pipeline.figures.style import (
    column_titles,
    first_of_each_preset,
    half_widths,
    require_columns,
)


def test_a_missing_column_and_an_empty_table_are_named():
    table = pd.DataFrame({"a": [1]})
    require_columns(table, ("a",), "t.csv")
    with pytest.raises(ValueError, match=r"t\.csv lacks the columns b, c"):
        require_columns(table, ("a", "b", "c"), "t.csv")
    with pytest.raises(ValueError, match=r"t\.csv has no rows"):
        require_columns(table.iloc[:0], ("a",), "t.csv")


def test_half_widths_are_zero_without_an_interval():
    rows = pd.DataFrame({"x": [1.0, 2.0], "x_low": [0.5, np.nan], "x_high": [1.25, np.nan]})
    assert half_widths(rows, "x", factor=100).tolist() == [[50, 0], [25, 0]]


def test_first_of_each_preset_and_titles():
    codes = torch.zeros(1, 4, dtype=torch.int32)
    records = {spec.method_id: make_records(spec, codes) for spec in (COUPLED, PROXIMITY, SAMPLED, AUTOREGRESSIVE)}
    ids = first_of_each_preset(records)
    assert ids == ["autoregressive", "coupled", "proximity-k5", "lantern-k20"]
    titles = column_titles([records[i] for i in ids])
    assert titles == ["auto-\nregressive", "coupled", "proximity\nk 5", "LANTERN\nchain\nk 20, δ 0.1"]
