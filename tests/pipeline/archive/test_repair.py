"""What is asked before a run: a folder that may be worked in, and tables that are what jobs wrote."""

from __future__ import annotations

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


<<<<<<< HEAD
def test_a_whole_run_has_nothing_to_repair(results):
    (results / "mine.csv").write_text("speedup\n1\n")  # a user's own has no sum
    (results / "quality" / "seen.csv").unlink()  # which Snakemake makes again
    assert not list(repair.find_damage(results))
=======
def test_what_is_missing_cut_or_edited_is_found(results):
    shard = results / SHARD
    edit(shard, shard.read_bytes()[:-40])
    edit(results / TABLE, (results / TABLE).read_bytes().replace(b"2.25", b"99.9"))
    (results / PAGE).unlink()
    found = damage(results)
    assert list(found) == sorted(found) == [PAGE, SHARD, TABLE]
    assert found[SHARD].startswith("is truncated") and found[PAGE] == "is missing"
    assert found[TABLE] == "was changed after the job that wrote it"
    edit(results / PAGE, b"another page")
    assert damage(results)[PAGE] == "was changed"
>>>>>>> checks


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


<<<<<<< HEAD
def test_records_of_snakemake_that_cannot_be_written_are_named(tmp_path):
    (tmp_path / ".snakemake").write_text("a file stands where the folder should")
    with pytest.raises(ValueError, match=r"\.snakemake/ cannot be written \(.*\): make it writable"):
        repair.check_folder(tmp_path)
=======
@pytest.fixture
def run_of(results, tmp_path, monkeypatch):
    """Calls `repair` in the folder of the finished run, on a config file that holds CONFIG."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(repair, "validate_config", lambda config: config.pop("resources", None))
    (tmp_path / "config.yaml").write_text("experiment: other\n")
    (tmp_path / "overlay.yaml").write_text("experiment: mine\n")
    return lambda *arguments: repair.repair(["--cores", "2", *arguments])


def test_damaged_files_are_set_aside_named_and_asked_for(results, run_of, capsys):
    assert run_of("--configfile", "overlay.yaml") == [] and capsys.readouterr().err == ""
    edit(results / TABLE, b"speedup\n99.9\n")
    (results / PAGE).unlink()
    assert run_of() == []  # another experiment's
    wanted = [f"results/mine/{name}" for name in (PAGE, TABLE)]
    for flag in ("-n", "--dry-run", "--dryrun"):  # which moves nothing
        assert run_of(flag, "--configfile=overlay.yaml") == wanted and (results / TABLE).is_file()
    said = capsys.readouterr().err.splitlines(keepends=True)[-1]
    assert run_of("--configfile", "overlay.yaml") == wanted
    assert said == capsys.readouterr().err and "front.html is missing; summary.csv was changed" in said
    assert not (results / TABLE).exists() and (results / f"{TABLE}.damaged").read_bytes() == b"speedup\n99.9\n"
    assert "more" not in said


def test_of_many_damaged_files_three_are_named(results, run_of, capsys):
    for name in (SHARD, TABLE, PAGE):
        (results / name).unlink()
    run_of("--configfile", "overlay.yaml")
    assert "more" not in capsys.readouterr().err
    provenance = read_json(results / "provenance.json")
    provenance["figures"] = {"fig_b.png": {"sha256": "0", "bytes": 1}}
    write_json(results / "provenance.json", provenance)
    assert len(run_of("--configfile", "overlay.yaml")) == 4
    said = capsys.readouterr().err
    assert "and 1 more: made again, with what follows" in said and said.count("is missing") == 3


def test_overlays_change_sections_key_by_key(run_of, tmp_path, monkeypatch):
    found = []
    monkeypatch.setattr(repair, "validate_config", found.append)
    (tmp_path / "config.yaml").write_text("experiment: other\ndata: {folder: here, num_train: 8}\ntrees: {}\n")
    (tmp_path / "overlay.yml").write_text("experiment: own\ndata: {folder: there}\n")
    assert run_of("--configfile", "overlay.yml") == []
    assert found[0]["data"] == {"folder": "there", "num_train": 8} and found[0]["experiment"] == "own"
>>>>>>> checks
