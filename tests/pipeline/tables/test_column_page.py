"""Tests that docs/columns.md explains every column of the published tables."""

from __future__ import annotations

import csv

from helpers.paths import ROOT
from lantern_pipeline.tables.column_page import MEANINGS, PAGE, column_page, rows_of
from lantern_pipeline.tables.summary import SUMMARY_COLUMNS

TABLES = [path for path in (ROOT / "docs").glob("*.csv") if path.name != "premise.csv"]


def columns_of(path):
    with path.open(encoding="utf-8", newline="") as file:
        return set(next(csv.reader(file)))


def is_told_once(name):
    """Whether the head of the page explains a column: an end of an interval, or a change."""
    return name.endswith(("_low", "_high", "_change"))


def test_the_page_is_that_of_the_tables():
    assert PAGE.read_text() == column_page(), "run PYTHONPATH=workflow python -m lantern_pipeline.tables.column_page"


def test_every_column_has_one_row_and_every_row_a_column():
    explained = [name for names in MEANINGS.values() for name in names]
    assert len(TABLES) > 10 and len(explained) == len(set(explained))
    published = set().union(*map(columns_of, TABLES))
    assert {name for name in published if not is_told_once(name)} <= set(explained)
    assert set(explained) <= published.union(SUMMARY_COLUMNS)


def test_what_is_told_once_belongs_to_a_row():
    explained = {name for names in MEANINGS.values() for name in names}
    for name in set().union(*map(columns_of, TABLES)):
        if is_told_once(name):
            stem = name.removesuffix("_low").removesuffix("_high").removesuffix("_change")
            assert stem in explained, name


def test_a_row_has_the_title_and_the_unit_of_its_metric():
    rows = {name: (title, unit) for group in MEANINGS for name, title, unit, _ in rows_of(group)}
    assert rows["`tokens_per_forward`"] == ("tokens / forward", "tokens per forward")
    assert rows["`delta`"][0] == "δ" and rows["`label`"][0] == "method"
    assert all("|" not in cell for group in MEANINGS for row in rows_of(group) for cell in row)
