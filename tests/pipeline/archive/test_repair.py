"""What is asked before a run: a folder that may be worked in, and tables that are what jobs wrote."""

from __future__ import annotations

import runpy
import sys

import pandas as pd
import pytest

from lantern.io import DamagedFileError, write_json
from lantern_pipeline.archive import repair
from lantern_pipeline.archive.provenance import KIND
from lantern_pipeline.data.tables import read_table, write_table

TABLE = "summary.csv"


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A finished run, as far as it is looked at."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "results" / "mine"
    for name in (TABLE, "quality/seen.csv"):
        write_table(folder / name, pd.DataFrame({"speedup": [1.5, 2.25]}))
    write_json(folder / "provenance.json", {"kind": KIND})
    return folder


def edit(file, content):
    file.write_bytes(content)


def test_a_whole_run_has_nothing_to_repair(results):
    (results / "mine.csv").write_text("speedup\n1\n")  # a user's own has no sum
    (results / "quality" / "seen.csv").unlink()  # which Snakemake makes again
    assert not list(repair.find_damage(results))


def test_an_edited_table_is_set_aside_and_stops_a_report(results, capsys):
    edit(results / TABLE, b"speedup\n1.5\n99.9\n")
    with pytest.raises(ValueError, match=r"summary\.csv was changed after the job that wrote it: run `make reproduce`"):
        repair.check_tables(results)
    repair.repair(results)
    assert "summary.csv was changed after the job that wrote it: set aside" in capsys.readouterr().err
    assert not (results / TABLE).exists() and (results / "summary.csv.damaged").exists()
    repair.check_tables(results)


@pytest.mark.parametrize("content", [b'{"kind": "lant', b"{}", b"[]", b"\xff"])
def test_a_provenance_that_is_cut_or_empty_is_set_aside(results, content, capsys):
    edit(results / "provenance.json", content)
    repair.repair(results)
    assert "provenance.json is" in capsys.readouterr().err and not (results / "provenance.json").exists()


def test_an_edited_table_is_refused_by_every_reader(results):
    assert read_table(results / TABLE)["speedup"].tolist() == [1.5, 2.25]
    edit(results / TABLE, b"speedup\n1.5\n99.9\n")
    with pytest.raises(DamagedFileError, match=r"summary\.csv was changed after the job that wrote it"):
        read_table(results / TABLE)
    (results / "mine.csv").write_text("speedup\n1\n")  # a user's own has no sum
    assert read_table(results / "mine.csv")["speedup"].tolist() == [1]


def test_a_folder_of_a_killed_run_names_the_way_out(tmp_path):
    repair.check_folder(tmp_path)
    locks = tmp_path / ".snakemake" / "locks"
    locks.mkdir(parents=True)
    (locks / "0.input.lock").touch()
    with pytest.raises(ValueError, match="the last run in this folder was killed: `make resume` goes on"):
        repair.check_folder(tmp_path)


def test_results_that_cannot_be_written_are_named(tmp_path):
    (tmp_path / "results").write_text("a file stands where the folder should")
    with pytest.raises(ValueError, match=r"results/ cannot be written \(.*\): make it writable"):
        repair.check_folder(tmp_path)


def test_records_of_snakemake_that_cannot_be_written_are_named(tmp_path):
    (tmp_path / ".snakemake").write_text("a file stands where the folder should")
    with pytest.raises(ValueError, match=r"\.snakemake/ cannot be written \(.*\): make it writable"):
        repair.check_folder(tmp_path)


@pytest.mark.parametrize("arguments", [["--check", "results/mine"], ["results/mine"]])
def test_make_reports_and_repairs_a_folder_by_its_name(results, monkeypatch, capsys, arguments):
    def run():
        monkeypatch.setattr(sys, "argv", ["repair.py", *arguments])
        runpy.run_path(repair.__file__, run_name="__main__")

    run()
    edit(results / TABLE, b"speedup\n99.9\n")
    if "--check" in arguments:
        with pytest.raises(SystemExit, match=r"summary\.csv was changed after the job that wrote it: run `make repr"):
            run()
        assert (results / TABLE).exists()
    else:
        run()
        assert "set aside as summary.csv.damaged" in capsys.readouterr().err and not (results / TABLE).exists()
