"""Tests of results against the checksums of their provenance: of a folder, and of an untrusted zip file."""

import json
import stat
import subprocess
import sys
import zipfile
from collections import namedtuple

import pytest

from lantern_pipeline.archive import verify
from lantern_pipeline.archive.provenance import FILE_PARTS, KIND, hash_files
from lantern_pipeline.archive.verify import check_files, files_outside, open_results, read_provenance

TARGET = "target/s0/model.safetensors"


@pytest.fixture
def experiment(tmp_path):
    """Make a finished experiment of a few small files."""
    folder = tmp_path / "results" / "mine"
    files = {
        "summary.csv": "a,b\n1,2\n",
        "figures/fig_b.png": "picture",
        "prompts/seen.jsonl": "{}\n",
        TARGET: "target",
        "drafter/s0/model.safetensors": "drafter",
        "generation/coupled/seen/T1/s0n0/1-of-1.safetensors": "codes",
        "report.html": "<html>",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    write_provenance(folder)
    return folder


def write_provenance(folder, **checkpoints):
    parts = {"models": "*/s0/*", "records": "generation/*/*/*/*/1*", "tables": "*.csv", "figures": "figures/*"}
    provenance = {
        "kind": KIND,
        "code": {"version": "1", "commit": None, "fingerprints": {}},
        **{part: hash_files(folder.glob(parts.get(part, "prompts/*")), folder) for part in FILE_PARTS},
        "config": {name: {"checkpoint": checkpoints.get(name)} for name in ("tokenizer", "target", "drafter")},
    }
    (folder / "provenance.json").write_text(json.dumps(provenance))


def check(path, workplace):
    """Return the number of files that agree, as `lantern verify` counts them."""
    workplace.mkdir(exist_ok=True)
    folder = open_results(path, workplace)
    return check_files(folder, read_provenance(folder))


def zipped(folder):
    """Make a zip file of an experiment, in the folder of the run, by Python's zipfile command."""
    file = folder.parents[1] / "mine.zip"
    command = [sys.executable, "-m", "zipfile", "-c", str(file), f"results/{folder.name}"]
    subprocess.run(command, cwd=folder.parents[1], check=True)
    return file


def test_a_whole_experiment_agrees_as_a_folder_and_as_a_zip_file(experiment, tmp_path):
    assert check(experiment, tmp_path / "out") == check(zipped(experiment), tmp_path / "out") == 6
    assert files_outside(experiment, read_provenance(experiment)) == ["report.html"]


def test_files_that_were_edited_or_lost_are_named(experiment, tmp_path):
    (experiment / "summary.csv").write_text("a,b\n1,3\n")
    (experiment / "prompts/seen.jsonl").unlink()
    for path in (experiment, zipped(experiment)):
        with pytest.raises(
            ValueError, match=r"changed: summary\.csv; missing: prompts/seen\.jsonl\); delete these files"
        ):
            check(path, tmp_path / "out")
    for file in experiment.rglob("*.*"):
        if file.name != "provenance.json":
            file.write_text("?")
    with pytest.raises(ValueError, match=r"changed: (\S+, ){2}\S+ and 2 more; missing"):
        check(experiment, tmp_path / "out")


def test_models_converted_from_published_weights_may_be_missing(experiment, tmp_path):
    (experiment / TARGET).unlink()
    for checkpoint, is_foreign in (("llamagen", True), ("models/embedded/target.safetensors", False)):
        provenance = json.loads((experiment / "provenance.json").read_text())
        provenance["config"]["target"]["checkpoint"] = checkpoint
        (experiment / "provenance.json").write_text(json.dumps(provenance))
        if is_foreign:
            check(experiment, tmp_path / "out")
        else:
            with pytest.raises(ValueError, match=f"missing: {TARGET}"):
                check(experiment, tmp_path / "out")


def test_what_holds_no_results_is_one_sentence(experiment, tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no folder or zip file"):
        check(tmp_path / "none", tmp_path / "out")
    with pytest.raises(ValueError, match=r"results holds no provenance\.json: name results/<experiment>"):
        check(experiment.parent, tmp_path / "out")
    with pytest.raises(ValueError, match=r"summary\.csv is damaged or is no plain zip file"):
        check(experiment / "summary.csv", tmp_path / "out")


FORGED = {"kind": KIND, "code": {"version": "\x1b[2J", "commit": None, "fingerprints": {}}, "config": {}}
FORGED |= {part: {} for part in FILE_PARTS}
TEXTS = ["[]", "[" * 100_000, json.dumps({"kind": KIND}), json.dumps(FORGED)]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_a_provenance_that_is_none_is_refused(experiment, tmp_path, text):
    (experiment / "provenance.json").write_text(text)
    with pytest.raises(ValueError, match=r"provenance\.json is no provenance of Lantern: delete it"):
        check(experiment, tmp_path / "out")


def test_a_provenance_names_files_of_its_own_folder_and_the_table_of_results_among_them(experiment, tmp_path):
    provenance = json.loads((experiment / "provenance.json").read_text())
    words = {
        "does not name summary.csv": {},
        "is no provenance of Lantern": provenance["tables"] | {"../../../etc/x.csv": {"sha256": "0" * 64}},
    }
    for said, tables in words.items():
        (experiment / "provenance.json").write_text(json.dumps({**provenance, "tables": tables}))
        with pytest.raises(ValueError, match=said):
            check(experiment, tmp_path / "out")


# --- hostile zip files -----------------------------------------------------------------------------


def test_a_flipped_bit_and_a_cut_are_found(experiment, tmp_path):
    file = zipped(experiment)
    whole = file.read_bytes()
    of_table = whole.index(b"summary.csv") + len("summary.csv") + 1  # within its content
    for place in (of_table, whole.rindex(b"PK\x01\x02") + 16):  # and of a checksum in the directory
        damaged = bytearray(whole)
        damaged[place] ^= 1
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match="have it sent again"):
            check(file, tmp_path / "out")
    for end in (0, 100, -1):
        file.write_bytes(whole[:end])
        with pytest.raises(ValueError, match="is damaged or is no plain zip file"):
            check(file, tmp_path / "out")


@pytest.mark.parametrize("name", ["/etc/passwd", "results/../../outside.txt", "a\0b", "link"])
def test_no_member_of_a_zip_file_leaves_the_folder(experiment, tmp_path, name):
    file = zipped(experiment)
    member = zipfile.ZipInfo(name)
    member.create_system, member.external_attr = 3, (stat.S_IFLNK if name == "link" else stat.S_IFREG | 0o777) << 16
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(member, "/etc/passwd")
    before = {path for path in tmp_path.rglob("*")}
    assert check(file, tmp_path / "out") == 6
    assert all(path.is_relative_to(tmp_path / "out") for path in set(tmp_path.rglob("*")) - before)
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))


@pytest.mark.parametrize(
    "name", ["/results/mine/provenance.json", "../provenance.json", "results/other/provenance.json"]
)
def test_a_zip_file_holds_one_provenance_below_the_folder(experiment, tmp_path, name):
    file = zipped(experiment)
    with zipfile.ZipFile(file, "a" if "other" in name else "w") as archive:
        archive.write(experiment / "provenance.json")
        archive.writestr(name, "{}")
    with pytest.raises(ValueError, match=r"must hold one provenance\.json, found [123]: zip one results/<experiment>"):
        check(file, tmp_path / "out")


def test_a_zip_file_larger_than_the_disk_is_refused_unread(experiment, tmp_path, monkeypatch):
    free = namedtuple("Usage", "free")(10)
    monkeypatch.setattr(verify.shutil, "disk_usage", lambda folder: free)
    with pytest.raises(ValueError, match=r"unpacks to \d+ bytes, of which 10 are free"):
        check(zipped(experiment), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_an_encrypted_zip_file_is_refused(experiment, tmp_path):
    file = zipped(experiment)
    content = bytearray(file.read_bytes())
    for place in range(len(content)):  # the flag of each member
        if content.startswith((b"PK\x03\x04", b"PK\x01\x02"), place):
            content[place + (6 if content[place + 2] == 3 else 8)] |= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match="is damaged or is no plain zip file"):
        check(file, tmp_path / "out")
