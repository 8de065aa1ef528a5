"""Packing an experiment, and unpacking an archive that nobody vouches for."""

import hashlib
import json
import os
import stat
import zipfile

import pytest

from lantern_pipeline.archive import archive as archive_module
from lantern_pipeline.archive.archive import SUMS, find_experiment, pack_experiment, unpack
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
        "captions/train/features-1-of-1.safetensors": "training data",
        "samples/s0/train-1-of-1.safetensors": "training data",
        "reference/features.safetensors": "features of images from elsewhere",
        "weights/model.safetensors": "made again",
        "study/answers/ada.json": "{}",
        "variants/small/generality.html": "<html>",
        "variants/small/logs/train.log": "/home/ada",
        "summary.csv.damaged": "a,b",
        "report.html": "<html>",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
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


def rewrite(path, changes, *, sums_too=False):
    """Writes the archive again with other members: name -> bytes, or None to leave it out."""
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()} | changes
    if sums_too:
        sums = {name: hashlib.sha256(data).hexdigest() for name, data in members.items() if data and name != SUMS}
        members[SUMS] = "".join(f"{sha256}  {name}\n" for name, sha256 in sums.items()).encode()
    with zipfile.ZipFile(path, "w") as new:
        for name, data in members.items():
            if data is not None:
                new.writestr(name, data)


def names_in(path):
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


# --- packing ---------------------------------------------------------------------------------------------------------


def test_what_is_packed_and_what_is_not(experiment, packed, tmp_path):
    names = [name.removeprefix("results/mine/") for name in names_in(packed)]
    assert names == [
        "drafter/s0-40steps/model.safetensors",
        "drafter/s0/model.safetensors",
        "figures/fig_b.png",
        "generation/coupled/seen/T1/s0n0/1-of-1.safetensors",
        "prompts/seen.jsonl",
        "provenance.json",
        "report.html",
        "summary.csv",
        "target/s0/model.safetensors",
        "variants/small/generality.html",
        SUMS,
    ]
    assert unpack(packed, tmp_path / "out")[0] == len(names) - 1
    assert find_experiment(tmp_path / "out", packed)[0] == tmp_path / "out" / "results" / "mine"


def test_the_same_results_make_the_same_archive(experiment, packed, tmp_path):
    for number, path in enumerate(sorted(experiment.rglob("*"))):
        os.utime(path, (1e9 + number, 1e9 - number))
    num_files, sha256 = pack_experiment(experiment, tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == packed.read_bytes()
    assert unpack(packed, tmp_path / "in") == (num_files, sha256)
    sums = (tmp_path / "in" / SUMS).read_bytes()  # as sha256sum reads them
    assert sha256 == hashlib.sha256(sums).hexdigest()
    with zipfile.ZipFile(packed) as archive:
        members = archive.infolist()
    kinds = {(member.date_time, member.create_system, member.external_attr >> 16) for member in members}
    assert kinds == {((1980, 1, 1, 0, 0, 0), 3, stat.S_IFREG | 0o644)}  # as `zip` on Linux would write them
    of_summary = hashlib.sha256((experiment / "summary.csv").read_bytes()).hexdigest()
    assert f"\n{of_summary}  {SUMMARY}\n" in sums.decode() and len(sums.splitlines()) == num_files


def test_models_converted_from_published_weights_stay_out(experiment, tmp_path):
    write_provenance(experiment, target="llamagen", drafter="drafter")
    pack_experiment(experiment, tmp_path / "mine.zip")
    names = names_in(tmp_path / "mine.zip")
    models = [name for name in names if name.endswith("model.safetensors")]
    assert models == ["results/mine/drafter/s0-40steps/model.safetensors"]
    write_provenance(experiment, target="models/embedded/target.safetensors")  # of this repository
    pack_experiment(experiment, tmp_path / "mine.zip")
    assert "results/mine/target/s0/model.safetensors" in names_in(tmp_path / "mine.zip")


def test_an_unfinished_or_changed_experiment_is_not_packed(experiment, tmp_path):
    (experiment / "figures" / "fig_b.png").write_text("another")
    with pytest.raises(ValueError, match=r"fig_b\.png has changed since .* run `make reproduce`, which"):
        pack_experiment(experiment, tmp_path / "mine.zip")
    (experiment / "figures" / "fig_b.png").unlink()
    (experiment / "target" / "s0" / "model.safetensors").unlink()  # the first by name is told
    with pytest.raises(ValueError, match=r"figures/fig_b\.png is named in .* but missing"):
        pack_experiment(experiment, tmp_path / "mine.zip")
    (experiment / "provenance.json").unlink()
    with pytest.raises(FileNotFoundError, match="run `make reproduce` to the end first"):
        pack_experiment(experiment, tmp_path / "mine.zip")
    assert not (tmp_path / "mine.zip").exists()


@pytest.mark.parametrize("text", ["[]", '{"kind": "report"}'])
def test_an_experiment_whose_provenance_is_something_else_is_not_packed(experiment, tmp_path, text):
    (experiment / "provenance.json").write_text(text)
    with pytest.raises(ValueError, match=r"provenance\.json is no provenance of a run: run `make reproduce`"):
        pack_experiment(experiment, tmp_path / "mine.zip")
    assert not (tmp_path / "mine.zip").exists()


def test_an_output_that_is_no_archive_is_left_alone(experiment, packed, tmp_path):
    for name in ("notes.zip", "folder.zip"):
        other = tmp_path / name
        other.mkdir() if name.startswith("folder") else other.write_text("not an archive")
        with pytest.raises(ValueError, match=rf"{name} exists and is no archive of `lantern pack`; choose another"):
            pack_experiment(experiment, other)
    assert (tmp_path / "notes.zip").read_text() == "not an archive"
    pack_experiment(experiment, packed)  # an earlier archive is replaced


# --- damage and hostile archives -------------------------------------------------------------------------------------


def refusal(packed, folder):
    """What is said of an archive that is not taken; nothing is written beside the folder."""

    def others():
        return sorted(path for path in folder.parent.rglob("*") if not path.is_relative_to(folder))

    before = others()
    with pytest.raises(ValueError) as caught:
        unpack(packed, folder)
        find_experiment(folder, packed)
    assert others() == before
    return str(caught.value)


def test_a_flipped_bit_is_found_in_contents_names_and_the_directory(packed, tmp_path):
    whole = packed.read_bytes()
    places = {whole.index(text) for text in (b"a,b\n1,2", b"codes", b"picture")}
    places |= {whole.index(b"PK\x03\x04") + 30, whole.index(b"PK\x01\x02") + 16, whole.rindex(b"PK\x01\x02") + 46}
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1
        packed.write_bytes(damaged)
        assert refusal(packed, tmp_path / f"out{place}")
    for end in (0, 100, -1):
        packed.write_bytes(whole[:end])
        assert "is damaged, truncated or no archive" in refusal(packed, tmp_path / f"cut{end}")


PATHS = ["/etc/passwd", "../outside.txt", "results/../../outside.txt", "results/./x", "results//x", "C:/x", r"a\..\x"]
PATHS += [".hidden", "results/folder/", "a\0b", "a\nb", "a b", "\u202etxt.exe", "x" * 301]


@pytest.mark.filterwarnings("ignore:Duplicate")
@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        *((path, {}, "a file's name must be relative") for path in PATHS),
        *(
            ("results/a", {"kind": kind}, "a must be a plain file")
            for kind in (stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR)
        ),
        ("results/bomb", {"data": bytes(10**6), "compression": zipfile.ZIP_DEFLATED}, "bomb must be stored plainly"),
        # whose compressed bytes are as many as the plain ones
        ("results/even", {"data": b"aaaaa", "compression": zipfile.ZIP_DEFLATED}, "even must be stored plainly"),
        *((name, {}, f"holds {name} twice") for name in (SUMMARY, SUMMARY.replace("summary", "Summary"))),
    ],
)
def test_a_member_that_is_no_plain_and_new_file_is_refused(packed, tmp_path, name, options, words):
    member = zipfile.ZipInfo("x" * len(name))
    member.filename = member.orig_filename = name
    member.create_system, member.external_attr = 3, (options.get("kind", stat.S_IFREG) | 0o777) << 16
    with zipfile.ZipFile(packed, "a") as archive:
        archive.writestr(member, options.get("data", b"x"), options.get("compression", zipfile.ZIP_STORED))
    said = refusal(packed, tmp_path / "out")
    assert words in said or (name in PATHS and "is damaged, truncated" in said)


def test_members_that_lie_over_one_another_and_too_many_are_refused(packed, tmp_path, monkeypatch):
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
    assert "bytes in an archive of" in refusal(packed, tmp_path / "out")
    monkeypatch.setattr(archive_module, "MAX_MEMBERS", 3)
    assert "may hold 3 files, found 15" in refusal(packed, tmp_path / "in")


def test_as_many_members_and_as_long_a_name_as_are_allowed_are_taken(packed, tmp_path, monkeypatch):
    names = names_in(packed)
    monkeypatch.setattr(archive_module, "MAX_MEMBERS", len(names))
    monkeypatch.setattr(archive_module, "MAX_NAME", max(map(len, names)))
    assert unpack(packed, tmp_path / "out")[0] == len(names) - 1
    monkeypatch.setattr(archive_module, "MAX_NAME", max(map(len, names)) - 1)
    assert "a file's name must be relative" in refusal(packed, tmp_path / "in")


def test_no_archive_has_more_than_a_hundred_thousand_members(packed):
    with zipfile.ZipFile(packed) as archive:
        members = archive.infolist()[:1] * 100_001
    with pytest.raises(ValueError, match="may hold 100000 files, found 100001"):
        archive_module._check_members(packed, members)


def test_an_encrypted_member_is_refused(packed, tmp_path):
    content = bytearray(packed.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1  # in the directory
    packed.write_bytes(content)
    assert "must be stored plainly, not compressed or encrypted" in refusal(packed, tmp_path / "out")


SEEN, EXTRA, PROVENANCE, TARGET = (
    f"results/mine/{name}"
    for name in ("prompts/seen.jsonl", "extra.csv", "provenance.json", "target/s0/model.safetensors")
)
SUM = b"0" * 64 + b"  x\n"
FORGED = {"kind": KIND, "code": {"version": "\x1b[2J", "commit": None, "fingerprints": {}}, "config": {}}
FORGED |= {part: {} for part in FILE_PARTS}
NO_PROVENANCE = [
    b"[]",
    b"{}",
    b"not json",
    b"[" * 100_000,
    *(json.dumps(one).encode() for one in ({"kind": KIND}, FORGED)),
]


@pytest.mark.parametrize(
    ("changes", "sums_too", "words"),
    [
        (
            {SUMMARY: b"a,b\n1,3\n", SEEN: None, EXTRA: b""},
            *(False, f"damaged: {SUMMARY}; missing: {SEEN}; foreign: {EXTRA}"),
        ),
        ({SUMMARY: b"?", SEEN: b"?", TARGET: b"?"}, False, f"(damaged: {SEEN} and 2 more)"),
        ({SUMMARY: b"?"}, False, f"(damaged: {SUMMARY})"),
        ({SUMMARY: b"a,b\n1,3\n"}, True, "summary.csv is not the file of provenance.json"),
        ({SUMMARY: None}, True, "lacks summary.csv, a file of provenance.json"),
        ({TARGET: None}, True, "lacks target/s0/model.safetensors, a file of provenance.json"),
        ({SUMS: None}, False, f"holds no {SUMS}"),
        ({SUMS: b""}, False, "foreign: "),  # knows no file
        *(
            ({SUMS: sums}, False, f"line {line} of {SUMS} must be")
            for line, sums in ((1, b"?\n"), (1, b"0" * 64 + b"  ../x\n"), (2, 2 * SUM), (1, b"\xff\xfe"))
        ),
        *(({PROVENANCE: text}, True, "provenance.json is no provenance of Lantern") for text in NO_PROVENANCE),
    ],
)
def test_contents_that_are_not_what_was_packed_are_refused(packed, tmp_path, changes, sums_too, words):
    rewrite(packed, changes, sums_too=sums_too)
    assert words in refusal(packed, tmp_path / "out")


def test_what_a_provenance_names_are_its_own_files_and_the_table_of_results_among_them(experiment, tmp_path):
    provenance = json.loads((experiment / "provenance.json").read_text())
    outside = {"../../../etc/x.csv": {"sha256": "0" * 64}}
    words = {
        "summary.csv is not the file of provenance.json": {},
        "provenance.json is no provenance of Lantern": provenance["tables"] | outside,
    }
    for number, (said, tables) in enumerate(words.items()):
        pack_experiment(experiment, tmp_path / "mine.zip")
        changed = json.dumps({**provenance, "tables": tables}).encode()
        rewrite(tmp_path / "mine.zip", {PROVENANCE: changed}, sums_too=True)
        assert said in refusal(tmp_path / "mine.zip", tmp_path / f"out{number}")


def test_a_table_that_is_none_is_one_sentence(experiment, tmp_path):
    (experiment / "summary.csv").write_bytes(b"a,b\n\xff\xfe\n")
    write_provenance(experiment)
    pack_experiment(experiment, tmp_path / "mine.zip")
    assert "summary.csv is no CSV table" in refusal(tmp_path / "mine.zip", tmp_path / "out")


def test_an_archive_of_two_experiments_is_refused(packed, tmp_path):
    with zipfile.ZipFile(packed) as archive:
        provenance = archive.read(PROVENANCE)
    rewrite(packed, {"results/other/provenance.json": provenance}, sums_too=True)
    assert "must hold one results/<experiment>/provenance.json, found 2" in refusal(packed, tmp_path / "out")
