"""What is asked before a run: a folder that may be worked in, and results that are what jobs wrote."""

from __future__ import annotations

import os

import pandas as pd
import pytest
import torch

from lantern.io import DamagedFileError, read_json, save_tensors, write_json
from lantern_pipeline.archive import repair
from lantern_pipeline.archive.provenance import FILE_PARTS, hash_files
from lantern_pipeline.data.tables import read_table, write_table

CONFIG = {"experiment": "mine"}
SHARD, TABLE, PAGE = "generation/1-of-1.safetensors", "summary.csv", "front.html"


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A finished run of a shard, a table and a page."""
    folder = tmp_path / "results" / "mine"
    save_tensors(folder / SHARD, {"codes": torch.arange(100)})
    write_table(folder / TABLE, pd.DataFrame({"speedup": [1.5, 2.25]}))
    (folder / PAGE).write_text("a page")
    monkeypatch.setattr(repair, "describe_code", lambda: {"fingerprints": {}})
    parts = {part: {} for part in FILE_PARTS} | {"records": hash_files([folder / SHARD], folder)}
    parts["tables"] = hash_files([folder / TABLE, folder / PAGE], folder)
    write_json(folder / "provenance.json", {**parts, "config": CONFIG, "code": {"fingerprints": {}}})
    return folder


def damage(results, config=CONFIG):
    return {file.relative_to(results).as_posix(): words for file, words in repair.find_damage(results, config)}


def edit(file, content):
    """Later than the provenance, as an editor does."""
    file.write_bytes(content)
    os.utime(file, ns=(2 * 10**18, 2 * 10**18))


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


def test_a_whole_run_has_nothing_to_repair_and_what_a_later_job_wrote_is_believed(results):
    assert damage(results) == {}
    edit(results / PAGE, (results / PAGE).read_bytes())  # touched, and the same
    assert damage(results) == {}
    # An interrupted run with another seed, say: its files carry sums of their own.
    save_tensors(results / SHARD, {"codes": torch.arange(50)})
    write_table(results / TABLE, pd.DataFrame({"speedup": [1.0]}))
    assert damage(results) == {}


def test_a_run_of_another_config_or_code_is_left_alone(results, monkeypatch):
    (results / PAGE).unlink()
    assert damage(results, {"experiment": "mine", "seed": 1}) == {}
    monkeypatch.setattr(repair, "describe_code", lambda: {"fingerprints": {"summarise.py": "0"}})
    assert damage(results) == {}


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
