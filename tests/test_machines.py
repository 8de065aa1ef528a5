"""Tests that docs/machines.md and docs/machines.csv state what the measurements in docs/machines/ contain."""

import shutil

import machines
import pytest

from helpers.paths import ROOT


@pytest.fixture
def docs(tmp_path):
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    return tmp_path / "docs"


@pytest.mark.parametrize("page", ["machines.md", "machines.csv"])
def test_the_page_is_up_to_date(page, docs):
    machines.publish(docs)
    assert (docs / page).read_text() == (ROOT / "docs" / page).read_text()


def test_a_new_machine_gets_a_line_and_an_old_name_is_replaced(docs):
    (first,) = sorted((docs / "machines").iterdir())[:1]
    shutil.copytree(first, docs / "machines" / "another")
    machines.publish(docs)
    table = machines.read_machines(docs)
    assert set(table["machine"]) == {path.name for path in (docs / "machines").iterdir()}
    assert (docs / "machines.md").read_text().count("| another |") == 1
    assert (docs / "machines.png").stat().st_size > 10_000
