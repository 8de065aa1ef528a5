"""Tests of manifests: from the input of a rule to the fetched files, and what a conversion states about its file."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.paths import ROOT
from helpers.published_layouts import CONFIG, ORIGINAL
from lantern_models.checkpoints.target import read_target
from lantern_models.images.shapes import ImageTokenizer, TokenizerConfig
from lantern_pipeline.fetch.manifest import (
    describe_conversion,
    describe_path,
    make_manifest,
    read_manifest,
    resource_path,
    resource_sha256,
)


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def test_a_job_gets_from_the_manifest_to_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file, path = Path("weights/model.pt"), Path("weights.json")
    file.parent.mkdir()
    file.write_bytes(b"weights")
    path.write_text(json.dumps(make_manifest("weights", file, "somewhere", describe_path(file)), indent=1))
    assert resource_path(path) == file and resource_sha256(path) == sha256(b"weights") == resource_sha256(file)
    os.utime(file, (0, 0))
    assert resource_path(path) == file  # another date, the same content
    file.write_bytes(b"changed")
    words = f"expected sha256 {sha256(b'weights')}, found {sha256(b'changed')}; delete weights.json"
    with pytest.raises(ValueError, match=words):
        resource_path(path)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"weights/model\.pt is missing; delete weights\.json and run again"):
        resource_path(path)


def test_a_manifest_of_several_files_leads_to_their_folder_and_looks_at_each(tmp_path):
    folder, path = tmp_path / "weights", tmp_path / "weights.json"
    (folder / "deep").mkdir(parents=True)
    contents = {"config.json": b"{}", "deep/model.bin": b"weights"}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    manifest = make_manifest("weights", folder, "somewhere", describe_path(folder))
    path.write_text(json.dumps(manifest, indent=1))
    assert resource_path(path) == folder and list(manifest["files"]) == list(contents)
    lines = "".join(f"{sha256(content)}  {name}\n" for name, content in contents.items())
    assert resource_sha256(path) == resource_sha256(folder) == sha256(lines.encode())
    (folder / "deep" / "model.bin").write_bytes(b"changed")
    with pytest.raises(ValueError, match=r"deep/model\.bin has changed since it was fetched"):
        resource_path(path)
    (folder / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"weights/config\.json is missing"):
        resource_path(path)


def test_a_path_that_is_no_manifest_comes_back_as_it_is(tmp_path):
    captions = tmp_path / "captions.json"
    captions.write_text('{"images": []}')
    for path in (captions, tmp_path, tmp_path / "model.pt"):
        assert resource_path(path) == path and read_manifest(path) is None
    assert resource_path(tmp_path / "none.json") == tmp_path / "none.json"
    manifest = json.dumps(make_manifest("weights", captions, "somewhere", {}), indent=1)
    (tmp_path / "manifest.txt").write_text(manifest)  # its name is no manifest's
    assert read_manifest(tmp_path / "manifest.txt") is None
    with pytest.raises(FileNotFoundError, match="is an empty folder"):
        (tmp_path / "empty").mkdir()
        resource_sha256(tmp_path / "empty")


def test_a_weight_file_is_what_the_sums_beside_it_say(tmp_path):
    weights, other = tmp_path / "target.safetensors", tmp_path / "other.safetensors"
    weights.write_bytes(b"weights")
    other.write_bytes(b"no line of SHA256SUMS")
    (tmp_path / "SHA256SUMS").write_text(f"{sha256(b'weights')}  target.safetensors\n")
    assert resource_path(weights) == weights and resource_path(other) == other
    for damage in (b"weight", b"", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 6\n"):
        weights.write_bytes(damage)
        words = f"{weights} is damaged: expected sha256 {sha256(b'weights')} .*, found {sha256(damage)}; "
        with pytest.raises(ValueError, match=f"{words}.*`git checkout {tmp_path}`"):
            resource_path(weights)


def test_what_was_converted_is_described():
    target = read_target(ORIGINAL, CONFIG)
    assert describe_conversion(ORIGINAL, target) == {
        "checkpoint": "target_llamagen.pt",
        "sha256": sha256(ORIGINAL.read_bytes()),
        "num_parameters": sum(parameter.numel() for parameter in target.parameters()),
        "norm_eps": CONFIG.norm_eps,
    }
    drawing = ImageTokenizer(TokenizerConfig(encoder_width=8, decoder_width=8, decoder_blocks=1))
    assert set(describe_conversion(ORIGINAL, drawing)) == {"checkpoint", "sha256", "num_parameters"}


def test_describing_resources_needs_no_heavy_library():
    code = (
        "import sys; import lantern_pipeline.fetch.entries, lantern_pipeline.fetch.manifest; "
        "sys.exit(bool({'torch', 'pandas', 'huggingface_hub', 'httpx2'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_files_of_a_folder_are_described_in_the_order_of_their_names_and_hidden_ones_left_out(tmp_path):
    names = [f"{folder}{number}.bin" for folder in ("b/", "", "a/") for number in (3, 1, 2)]
    for name in [*names, ".hidden", ".cache/4.bin", "a/.part"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert list(describe_path(tmp_path)) == sorted(names)
