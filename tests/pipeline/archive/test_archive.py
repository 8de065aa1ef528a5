"""Packing an experiment and reading an archive that nobody vouches for."""

import hashlib
import json
import os
import shutil
import stat
import subprocess
import zipfile

import pytest

from lantern_pipeline.archive import archive as archive_module
from lantern_pipeline.archive.archive import CONFIG, MANIFEST, Archive, read_provenance
from lantern_pipeline.archive.packing import pack_experiment
from lantern_pipeline.archive.provenance import FILE_PARTS, KIND, hash_files

SUMMARY = "results/mine/summary.csv"


@pytest.fixture
def experiment(tmp_path):
    """A finished experiment of a few small files."""
    folder = tmp_path / "run" / "results" / "mine"
    files = {
        "summary.csv": "a,b\n1,2\n",
        "figures/fig_b.png": "picture",
        "prompts/seen.jsonl": "{}\n",
        "target/s0/model.safetensors": "target",
        "drafter/s0/model.safetensors": "drafter",
        "drafter/s0-40steps/model.safetensors": "short",
        "generation/coupled/seen/T1/s0n0/1-of-1.safetensors": "codes",
        "generation/coupled/seen/T1/s0n0/.partial-1.safetensors": "half",
        "logs/train.log": "/home/ada",
        "codes/train-1-of-1.safetensors": "training data",
        "study/answers/ada.json": "{}",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    shutil.copy(folder / "summary.csv", folder.parent)
    (folder.parent / "report.html").write_text("<html>")
    write_provenance(folder)
    return folder


def write_provenance(folder, **checkpoints):
    config = {name: {"checkpoint": checkpoints.get(name)} for name in ("tokenizer", "target", "drafter")}
    parts = {"models": "target/*/*", "records": "generation/*/*/*/*/1*", "tables": "*.csv", "figures": "figures/*"}
    provenance = {
        "kind": KIND,
        "code": {"version": "1", "commit": None, "fingerprints": {}},
        **{part: hash_files(folder.glob(parts.get(part, "prompts/*")), folder) for part in FILE_PARTS},
        "config": config,
    }
    (folder / "provenance.json").write_text(json.dumps(provenance))


@pytest.fixture
def packed(experiment, tmp_path):
    pack_experiment(experiment, tmp_path / "mine.zip")
    return tmp_path / "mine.zip"


def rewrite(path, changes, *, manifest_too=False):
    """Writes the archive again with other members: name -> bytes, or None to leave it out."""
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()} | changes
    if manifest_too:
        hashes = {name: hashlib.sha256(data).hexdigest() for name, data in members.items() if data and name != MANIFEST}
        members[MANIFEST] = "".join(f"{sha256}  {name}\n" for name, sha256 in hashes.items()).encode()
    with zipfile.ZipFile(path, "w") as new:
        for name, data in members.items():
            if data is not None:
                new.writestr(name, data)


# --- packing ---------------------------------------------------------------------------------------------------------


def test_what_is_packed_and_what_is_not(packed):
    with Archive(packed) as archive:
        names = [name.removeprefix("results/mine/") for name in archive.names]
        assert names == [
            MANIFEST,
            CONFIG,
            "drafter/s0-40steps/model.safetensors",
            "drafter/s0/model.safetensors",
            "figures/fig_b.png",
            "generation/coupled/seen/T1/s0n0/1-of-1.safetensors",
            "prompts/seen.jsonl",
            "provenance.json",
            "summary.csv",
            "target/s0/model.safetensors",
            "results/report.html",
            "results/summary.csv",
        ]
        assert archive.check_hashes().is_clean and archive.check_hashes().num_files == len(names) - 1
        assert read_provenance(archive)[0] == "results/mine"


def test_the_same_results_make_the_same_archive_whatever_their_dates(experiment, packed, tmp_path):
    for number, path in enumerate(sorted(experiment.rglob("*"))):
        os.utime(path, (1e9 + number, 1e9 - number))
    num_files, sha256 = pack_experiment(experiment, tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == packed.read_bytes()
    with Archive(packed) as archive:
        assert (len(archive.manifest), archive.manifest_sha256) == (num_files, sha256)


def test_models_converted_from_published_weights_stay_out(experiment, tmp_path):
    write_provenance(experiment, target="llamagen", drafter="drafter")
    pack_experiment(experiment, tmp_path / "mine.zip")
    with Archive(tmp_path / "mine.zip") as archive:
        models = [name for name in archive.names if name.endswith("model.safetensors")]
    assert models == ["results/mine/drafter/s0-40steps/model.safetensors"]


def test_models_from_the_weights_of_this_repository_are_packed(experiment, tmp_path):
    write_provenance(experiment, target="models/embedded/target.safetensors")
    pack_experiment(experiment, tmp_path / "mine.zip")
    with Archive(tmp_path / "mine.zip") as archive:
        assert "results/mine/target/s0/model.safetensors" in archive


def test_the_report_of_another_experiment_stays_out(experiment, tmp_path):
    (experiment.parent / "summary.csv").write_text("other")
    pack_experiment(experiment, tmp_path / "mine.zip")
    with Archive(tmp_path / "mine.zip") as archive:
        assert "results/report.html" not in archive and SUMMARY in archive


def test_an_unfinished_or_changed_experiment_is_not_packed(experiment, tmp_path):
    (experiment / "figures" / "fig_b.png").write_text("another")
    with pytest.raises(ValueError, match=r"fig_b\.png has changed since .* delete it and run `make reproduce`, which"):
        pack_experiment(experiment, tmp_path / "mine.zip")
    (experiment / "figures" / "fig_b.png").unlink()
    with pytest.raises(ValueError, match=r"figures/fig_b\.png is named in .* but missing"):
        pack_experiment(experiment, tmp_path / "mine.zip")
    (experiment / "provenance.json").unlink()
    with pytest.raises(FileNotFoundError, match="run `make reproduce` to the end first"):
        pack_experiment(experiment, tmp_path / "mine.zip")
    assert not (tmp_path / "mine.zip").exists()


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs sha256sum")
def test_an_output_that_is_no_archive_is_left_alone(experiment, packed, tmp_path):
    for name in ("notes.zip", "folder.zip"):
        other = tmp_path / name
        other.mkdir() if name.startswith("folder") else other.write_text("not an archive")
        with pytest.raises(ValueError, match=rf"{name} exists and is no archive of `lantern pack`; choose another"):
            pack_experiment(experiment, other)
    assert (tmp_path / "notes.zip").read_text() == "not an archive"
    pack_experiment(experiment, packed)  # an earlier archive is replaced


def test_the_manifest_is_what_sha256sum_reads(packed, tmp_path):
    shutil.unpack_archive(packed, tmp_path / "out")
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", MANIFEST], cwd=tmp_path / "out", check=True)


# --- damage ----------------------------------------------------------------------------------------------------------


def test_a_flipped_bit_is_found_in_contents_names_and_the_directory(packed):
    whole = packed.read_bytes()
    places = {place for text in (b"a,b\n1,2", b"codes", b"picture") for place in [whole.index(text)]}
    places |= {whole.index(b"PK\x03\x04") + 30, whole.index(b"PK\x01\x02") + 16, whole.rindex(b"PK\x01\x02") + 46}
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1
        packed.write_bytes(damaged)
        try:
            with Archive(packed) as archive:
                is_clean = archive.check_hashes().is_clean
        except ValueError:
            is_clean = False
        assert not is_clean, place


def test_damaged_missing_and_foreign_files_are_named(packed):
    rewrite(packed, {SUMMARY: b"a,b\n1,3\n", "results/mine/prompts/seen.jsonl": None, "results/mine/extra.csv": b""})
    with Archive(packed) as archive:
        report = archive.check_hashes()
    assert report.damaged == [SUMMARY]
    assert report.missing == ["results/mine/prompts/seen.jsonl"]
    assert report.foreign == ["results/mine/extra.csv"]
    assert not report.is_clean


def test_a_damaged_file_is_not_extracted(packed, tmp_path):
    rewrite(packed, {SUMMARY: b"a,b\n1,3\n"})
    with Archive(packed) as archive, pytest.raises(ValueError, match=r"summary\.csv is damaged"):
        archive.extract(SUMMARY, tmp_path / "out")


def test_a_manifest_made_to_fit_is_found_by_the_provenance(packed):
    rewrite(packed, {SUMMARY: b"a,b\n1,3\n"}, manifest_too=True)
    with Archive(packed) as archive:
        assert archive.check_hashes().is_clean
        with pytest.raises(ValueError, match=r"summary\.csv is not the file of provenance\.json"):
            read_provenance(archive)


def test_another_config_than_the_provenances_is_found(packed):
    rewrite(packed, {CONFIG: b"{}"}, manifest_too=True)
    with Archive(packed) as archive, pytest.raises(ValueError, match="is not the config of"):
        read_provenance(archive)


@pytest.mark.parametrize("end", [0, 100, -1])
def test_a_truncated_archive_is_one_sentence(packed, end):
    packed.write_bytes(packed.read_bytes()[:end])
    with pytest.raises(ValueError, match="is truncated or is no archive"):
        Archive(packed)


# --- hostile archives ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../outside.txt",
        "results/../../outside.txt",
        "results/./x",
        "results//x",
        "C:/x",
        "results\\..\\x",
        ".hidden",
        "results/folder/",
        "a\0b",
        "a\nb",
        "a b",
        "\u202etxt.exe",
        "x" * 301,
    ],
)
def test_no_name_leaves_the_folder_or_fools_a_reader(packed, name):
    with zipfile.ZipFile(packed, "a") as archive:
        member = zipfile.ZipInfo("x" * len(name))
        member.filename = member.orig_filename = name
        archive.writestr(member, b"x")
    with pytest.raises(ValueError, match=r"a file.s name must be relative|is truncated or is no archive"):
        Archive(packed)


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
def test_links_and_devices_are_refused(packed, kind):
    member = zipfile.ZipInfo("results/link")
    member.create_system, member.external_attr = 3, (kind | 0o777) << 16
    with zipfile.ZipFile(packed, "a") as archive:
        archive.writestr(member, b"/etc/passwd")
    with pytest.raises(ValueError, match="results/link must be a plain file"):
        Archive(packed)


def test_compressed_members_are_refused_so_that_no_small_file_becomes_a_large_one(packed):
    with zipfile.ZipFile(packed, "a") as archive:
        archive.writestr(zipfile.ZipInfo("results/bomb"), bytes(10**6), zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match="results/bomb must be stored plainly"):
        Archive(packed)


def test_members_that_lie_over_one_another_are_refused(packed):
    with zipfile.ZipFile(packed, "a") as archive:
        archive.writestr("results/large", bytes(10**5))
        for number in range(3):
            again = zipfile.ZipInfo(f"results/again{number}")
            original = archive.getinfo("results/large")
            for field in ("header_offset", "CRC", "compress_size", "file_size", "external_attr", "create_system"):
                setattr(again, field, getattr(original, field))
            archive.filelist.append(again)
            archive.NameToInfo[again.filename] = again
        archive._didModify = True
    with pytest.raises(ValueError, match=r"its files claim \d+ bytes in an archive of \d+|is truncated"):
        Archive(packed)


def test_a_name_that_comes_twice_is_refused(packed):
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(packed, "a") as archive:
        archive.writestr(SUMMARY, b"other")
    with pytest.raises(ValueError, match=r"holds results/mine/summary\.csv twice"):
        Archive(packed)


def test_names_that_some_systems_take_for_one_are_refused(packed):
    with zipfile.ZipFile(packed, "a") as archive:
        archive.writestr(SUMMARY.replace("summary", "Summary"), b"other")
    with pytest.raises(ValueError, match="twice"):
        Archive(packed)


def test_too_many_and_too_large_files_are_refused(packed, monkeypatch):
    monkeypatch.setattr(archive_module, "MAX_MEMBERS", 3)
    with pytest.raises(ValueError, match="may hold 3 files, found 12"):
        Archive(packed)
    monkeypatch.undo()
    monkeypatch.setattr(archive_module, "MAX_TEXT_BYTES", 10)
    with pytest.raises(ValueError, match=r"MANIFEST\.sha256 may have 10 bytes"):
        Archive(packed)


@pytest.mark.parametrize(
    "manifest",
    [b"", b"nonsense\n", b"0" * 64 + b"  ../x\n", b"0" * 64 + b"  x\n" + b"1" * 64 + b"  x\n", b"\xff\xfe", None],
)
def test_a_manifest_of_another_form_is_refused(packed, manifest):
    rewrite(packed, {MANIFEST: manifest})
    try:
        with Archive(packed) as archive:
            assert not archive.check_hashes().is_clean  # an empty one knows no file
    except ValueError as error:
        assert "MANIFEST.sha256" in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        "not json",
        "[" * 100_000,
        '{"kind": "lantern_provenance"}',
        '{"kind": "lantern_provenance", "models": 1}',
        '{"code": {"version": "\\u001b[2J", "commit": null, "fingerprints": {}}, "kind": "lantern_provenance", '
        '"config": {}, "models": {}, "prompts": {}, "records": {}, "tables": {}, "figures": {}}',
    ],
)
def test_a_provenance_of_another_form_is_refused(packed, text):
    rewrite(packed, {"results/mine/provenance.json": text.encode()}, manifest_too=True)
    with Archive(packed) as archive, pytest.raises(ValueError, match=r"provenance"):
        read_provenance(archive)
