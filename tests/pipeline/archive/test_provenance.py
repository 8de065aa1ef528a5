"""Tests of what a provenance states about config, code, machine and files, and what it must not state."""

import getpass
import json
import shutil
import socket
import subprocess
from copy import deepcopy
from pathlib import Path

import pytest
import torch

from helpers.configs import load_config
from helpers.paths import ROOT
from lantern.records import GenerationRecords, save_records
from lantern_pipeline.archive import provenance
from lantern_pipeline.archive.provenance import (
    compare_code,
    describe_code,
    describe_decoding,
    describe_environment,
    describe_resources,
    hash_files,
    publishable_config,
    results_config,
)
from lantern_pipeline.fetch.manifest import describe_file, make_manifest
from lantern_pipeline.job.machine import describe_machine

ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


PUBLISHED = {
    "/home/ada/weights/target.pt": "target.pt",
    "/home/ada/weights/": "weights",
    "/": ".",
    "~/target.pt": "target.pt",
    "../ada/target.pt": "target.pt",
    r"C:\Users\ada\target.pt": "target.pt",
    r"\\server\ada\target.pt": "target.pt",
    "file:///home/ada/x.csv": "x.csv",
    "https://ada:secret@example.org/x.csv": "https://example.org/x.csv",
    "https://example.org/a/x.csv": "https://example.org/a/x.csv",
    "prompts/mine.txt": "prompts/mine.txt",
    "A photo depicts ": "A photo depicts ",
    3: 3,
    None: None,
}


def test_paths_of_one_machine_and_passwords_are_not_published():
    found = publishable_config({"section": {"list": list(PUBLISHED)}})
    assert dict(zip(PUBLISHED, found["section"]["list"], strict=True)) == PUBLISHED


def test_what_says_how_jobs_run_writes_no_provenance_again():
    config = load_config([ROOT / "config.yaml"])
    other = deepcopy(config)
    other["device"] = "cuda"
    other["generation"] |= {"batch_size": 7, "stepping": "eager", "num_shards": 3}
    other["metrics"]["batch_size"] = 7
    assert results_config(other) == results_config(config) and publishable_config(other) != publishable_config(config)
    other["generation"]["dtype"] = "bfloat16"
    assert results_config(other) != results_config(config)


def make_project(folder):
    files = {
        "lantern/__init__.py": "",
        "lantern_methods/__init__.py": "",
        "lantern_methods/pjd.py": "import lantern\n",
        "workflow/scripts/work.py": "import lantern\n",
        "workflow/lantern_pipeline/figures/frontier.py": "",
        "Snakefile": "",
        "README.md": "",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def git(folder, *arguments):
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_code_is_named_by_commit_and_by_what_differs_from_it(tmp_path, monkeypatch):
    project = make_project(tmp_path / "project")
    assert describe_code(project)["commit"] is None and describe_code(project)["is_modified"] is None
    git(project, "init", "--quiet")
    git(project, "add", ".")
    git(project, "commit", "--quiet", "-m", "First")
    found = describe_code(project)
    assert found["commit"] == git(project, "rev-parse", "HEAD") and found["is_modified"] is False
    assert list(found["fingerprints"]) == [
        "frontier.py",
        "work.py",
        "lantern_methods/pjd.py",
    ]  # in the order of their paths
    (project / "README.md").write_text("text")
    assert describe_code(project)["is_modified"] is False
    (project / "lantern" / "new.py").write_text("")
    assert describe_code(project)["is_modified"] is True
    # A repository around an installed package is not taken for its own.
    assert describe_code(make_project(project / "inside"))["commit"] is None
    run_git = provenance._git
    monkeypatch.setattr(provenance, "_git", lambda root, *words: None if "status" in words else run_git(root, *words))
    assert describe_code(project)["commit"] and describe_code(project)["is_modified"] is None  # which nobody knows
    monkeypatch.setenv("PATH", str(tmp_path))  # without git
    assert describe_code(project)["commit"] is None


def test_environment_and_machine_are_described_without_user_and_host():
    environment, machine = describe_environment(), describe_machine()
    assert torch.__version__.startswith(environment["packages"]["torch"].partition("+")[0])
    assert machine["cpu"] and machine["cores"] >= 1 and isinstance(machine["gpus"], list)
    words = json.dumps([environment, machine]).lower().replace('"', " ").split()
    assert socket.gethostname().lower() not in words and getpass.getuser().lower() not in words
    assert str(Path.home()) not in words


def test_files_are_named_relative_to_the_folder_and_resources_by_their_hashes(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.csv").write_text("abc")
    (tmp_path / "a.csv").write_text("")
    found, entry = hash_files([tmp_path / "b" / "x.csv", tmp_path / "a.csv"], tmp_path), {"sha256": ABC, "bytes": 3}
    assert list(found) == ["a.csv", "b/x.csv"] and found["b/x.csv"] == entry
    with pytest.raises(FileNotFoundError, match="gone"):
        hash_files([tmp_path / "gone.csv"], tmp_path)
    own = tmp_path / "b" / "x.csv"
    manifest = make_manifest("weights", own, f"a copy at {own}", {"w.pt": describe_file(own)})
    (tmp_path / "weights.json").write_text(json.dumps(manifest))
    resources = describe_resources([tmp_path / "weights.json", own])
    assert resources == {"weights": {"w.pt": entry}, "x.csv": {"x.csv": entry}}  # not by their place
    assert list(resources) == ["weights", "x.csv"]


def test_resources_are_described_in_one_order_whatever_the_order_of_files_and_inputs(tmp_path):
    names, inputs = [f"{number}.pt" for number in range(8)], []
    files = {name: {"sha256": ABC, "size": 3, "mtime_ns": 0} for name in reversed(names)}
    for number in (3, 0, 6, 1, 7, 4, 2, 5):  # eight copies of one resource: the last by its path is described
        manifest = {**make_manifest("weights", tmp_path, "somewhere", files), "files": files}
        manifest["files"] = {**files, "0.pt": {**files["0.pt"], "size": number}}
        inputs.append(tmp_path / str(number) / "weights.json")
        inputs[-1].parent.mkdir()
        inputs[-1].write_text(json.dumps(manifest))
    (found,) = describe_resources(inputs).values()
    assert list(found) == names and found["0.pt"]["bytes"] == 7


def test_decoding_lists_each_device_and_format_once(tmp_path):
    metadata = {"device": "cpu", "dtype": "float32", "num_threads": 1, "torch": "2", "gpu": None}
    others = [{"num_threads": number} for number in (4, 3, 2)]
    for number, changes in enumerate([{}, {}, {"device": "cuda", "gpu": "H200"}, *others]):
        codes, ones = torch.zeros(1, 4, dtype=torch.int32), torch.ones(1)
        tensors = [codes, ones.int(), codes.short(), codes.short(), codes.bool(), ones, codes.float()]
        records = GenerationRecords(["a"], *tensors, {**metadata, **changes})
        save_records(tmp_path / f"{number}.safetensors", records)
    found = describe_decoding(sorted(tmp_path.iterdir()))
    assert [(entry["device"], entry["gpu"], entry["num_threads"]) for entry in found] == [
        *(("cpu", None, number) for number in (1, 2, 3, 4)),
        ("cuda", "H200", 1),
    ]


def test_the_reports_page_shows_the_facts_as_text():
    value = {
        "code": {"version": "1", "commit": None, "is_modified": None},
        "environment": describe_environment(),
        "machine": {**describe_machine(), "cpu": "A <b>CPU</b>", "gpus": [{"name": "GPU 1"}], "driver": "550.1"},
        "decoding": [{"device": "cpu", "gpu": None, "dtype": "float32", "num_threads": 1, "torch": "2"}],
        "seeds": {"seed": 0},
        "resources": {},
        **{part: {} for part in provenance.FILE_PARTS},
    }
    page = provenance.render_page(value)
    found = ["Lantern 1, commit unknown", "A &lt;b&gt;CPU&lt;/b&gt;", "GPU 1, driver 550.1", "cpu, float32, torch 2"]
    assert all(words in page for words in [*found, "seed 0", "SHA-256 of 0 files"]) and "modified" not in page
    value["code"] |= {"commit": "a" * 40, "is_modified": True}
    assert f"Lantern 1, commit {'a' * 40}, modified" in provenance.render_page(value)


def test_a_line_names_who_made_something(monkeypatch):
    machine = {"cpu": "A CPU", "cores": 2, "gpus": [{"name": "A GPU"}]}
    monkeypatch.setattr(provenance, "describe_machine", lambda: machine)
    for commit, words in (("0123456789", "commit 0123456, modified"), (None, "commit unknown")):
        code = {"version": "1.0", "commit": commit, "is_modified": commit is not None}
        monkeypatch.setattr(provenance, "describe_code", lambda code=code: code)
        assert provenance.describe_maker() == f"Lantern 1.0, {words}, on A CPU, 2 cores, A GPU"


def test_code_is_compared_by_what_a_script_runs(monkeypatch):
    ours = {"work.py": "1" * 16, "lantern_methods/pjd.py": "2" * 16, "lantern/new.py": "3" * 16}
    monkeypatch.setattr(provenance, "describe_code", lambda: {"fingerprints": ours})
    theirs = {"version": "1.0", "commit": None, "fingerprints": {"work.py": "1" * 16}}
    same = "work.py runs the code of the results (version 1.0, commit unknown)"
    assert compare_code({"code": theirs}, "work.py") == same
    theirs["fingerprints"]["lantern_methods/pjd.py"] = "0" * 16
    assert f"{same}, but other code for methods in lantern_methods/pjd.py: " in compare_code(
        {"code": theirs}, "work.py"
    )
    theirs["fingerprints"] = {"work.py": "0" * 16}
    assert "does not run the code" in compare_code({"code": theirs}, "work.py")
    assert "this installation has no other.py" in compare_code({"code": theirs}, "other.py")
