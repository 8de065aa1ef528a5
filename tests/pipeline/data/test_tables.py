"""Tests that tables are read as they were written, and unreadable ones are named."""

import pandas as pd
import pytest

from lantern.io import DamagedFileError
from lantern_pipeline.data.tables import read_table, write_table


def test_tables_keep_the_word_none_and_six_digits(tmp_path):
    frame = pd.DataFrame({"acceptance": ["none", "additive"], "nll": [3.14159265, None]})
    write_table(tmp_path / "t.csv", frame)
    assert (tmp_path / "t.csv").read_text() == "acceptance,nll\nnone,3.14159\nadditive,\n"
    assert list(read_table(tmp_path / "t.csv")["acceptance"]) == ["none", "additive"]


def test_ids_and_texts_that_look_missing_stay_what_they_are(tmp_path):
    frame = pd.DataFrame({"prompt_id": ["NA", "007"], "name": ["null", "x"], "nll": [1.5, None]})
    write_table(tmp_path / "t.csv", frame)
    found = read_table(tmp_path / "t.csv", text_columns=["name"])
    assert found["prompt_id"].tolist() == ["NA", "007"] and found["name"].tolist() == ["null", "x"]
    assert found["nll"].isna().tolist() == [False, True]


def test_the_former_name_of_a_column_is_read_as_the_name_of_today(tmp_path):
    former = "mean_accepted_length"
    (tmp_path / "t.csv").write_text(f"method,{former},{former}_low\njacobi,2.72,2.66\n")
    assert [*read_table(tmp_path / "t.csv")] == ["method", "tokens_per_forward", "tokens_per_forward_low"]


def test_an_empty_table_is_named(tmp_path):
    (tmp_path / "t.csv").write_text("")
    with pytest.raises(ValueError, match=r"t\.csv is not a CSV table"):
        read_table(tmp_path / "t.csv")


def test_a_table_cut_off_within_a_line_is_named(tmp_path):
    write_table(tmp_path / "t.csv", pd.DataFrame({"nll": [3.25, 2.5]}))
    read_table(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_bytes((tmp_path / "t.csv").read_bytes()[:-2])
    with pytest.raises(DamagedFileError, match=r"t.csv is truncated: its last line has no end; fetch it"):
        read_table(tmp_path / "t.csv")
