"""Tests that docs/machines.md and docs/machines.csv state what the measurements in docs/machines/ contain."""

import json
import shutil

import machines
import pytest

from helpers.paths import ROOT

MACHINES = sorted((ROOT / "docs" / "machines").iterdir())


@pytest.fixture
def docs(tmp_path):
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    return tmp_path / "docs"


@pytest.mark.parametrize("page", ["machines.md", "machines.csv"])
def test_the_page_is_up_to_date(page, docs):
    machines.publish(docs)
    is_equal = (docs / page).read_text() == (ROOT / "docs" / page).read_text()
    assert is_equal, (
        f"docs/{page} differs from the files in docs/machines/: run `make machine` and commit what it writes"
    )


def test_a_new_machine_gets_a_line_and_an_old_name_is_replaced(docs):
    shutil.copytree(MACHINES[0], docs / "machines" / "another")
    machines.publish(docs)
    table = machines.read_machines(docs)
    assert set(table["machine"]) == {path.name for path in (docs / "machines").iterdir()}
    assert (docs / "machines.md").read_text().count("| another |") == 1
    assert (docs / "machines.png").stat().st_size > 10_000


@pytest.mark.parametrize("machine", MACHINES, ids=lambda path: path.name)
def test_a_folder_of_a_machine_holds_one_file(machine):
    assert [path.name for path in machine.iterdir()] == ["bench.json"]


def without_a_method(report):
    del report["rows"][2]


def of_another_model(report):
    report["model"] = "fashion"


def interrupted(report):
    report["rounds_complete"] -= 1


def without_a_machine(report):
    del report["torch"]


def with_a_text(report):
    report["rows"][1]["speedup_low"] = "fast"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (without_a_method, "methods of .*got autoregressive, eagle1, hybrid, "),
        (of_another_model, "model of .* must be embedded, got fashion"),
        (interrupted, "rounds_complete of .* must be 3, got 2"),
        (without_a_machine, "torch of .* must be a text, got None"),
        (with_a_text, "speedup_low of eagle1 of .* must be a number, got fast"),
        (dict.clear, "mine/bench.json must be"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(edit, message, docs):
    report = json.loads((MACHINES[0] / "bench.json").read_text())
    edit(report)
    (docs / "machines" / "mine").mkdir()
    (docs / "machines" / "mine" / "bench.json").write_text(json.dumps(report))
    with pytest.raises(ValueError, match=message):
        machines.publish(docs)
