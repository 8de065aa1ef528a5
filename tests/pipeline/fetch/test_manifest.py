"""Manifests: paths that are none, what a conversion says of its file, and how little it takes to read one."""

import hashlib
import subprocess
import sys

import pytest

from conftest import ROOT
from lantern.checkpoints.target import read_target
from lantern_pipeline.fetch.manifest import describe_conversion, read_manifest, resource_path, resource_sha256
from lantern_pipeline.world.tokenizer import ImageTokenizer, TokenizerConfig
from published_layouts import CONFIG, ORIGINAL


def test_a_path_that_is_no_manifest_comes_back_as_it_is(tmp_path):
    captions = tmp_path / "captions.json"
    captions.write_text('{"images": []}')
    for path in (captions, tmp_path, tmp_path / "model.pt"):
        assert resource_path(path) == path and read_manifest(path) is None
    with pytest.raises(FileNotFoundError, match="is an empty folder"):
        (tmp_path / "empty").mkdir()
        resource_sha256(tmp_path / "empty")


@pytest.mark.parametrize(
    "damage",
    [b"weight", b"", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 6\n"],
    ids=["truncated", "empty", "pointer of git-lfs"],
)
def test_a_weight_file_is_what_the_sums_beside_it_say(tmp_path, damage):
    weights, other = tmp_path / "target.safetensors", tmp_path / "other.safetensors"
    weights.write_bytes(b"weights")
    other.write_bytes(b"no line of SHA256SUMS")
    expected = hashlib.sha256(b"weights").hexdigest()
    (tmp_path / "SHA256SUMS").write_text(f"{expected}  target.safetensors\n")
    assert resource_path(weights) == weights and resource_path(other) == other
    weights.write_bytes(damage)
    found = hashlib.sha256(damage).hexdigest()
    with pytest.raises(
        ValueError, match=f"{weights} is damaged: expected sha256 {expected} .*, found {found}; "
    ) as error:
        resource_path(weights)
    assert f"`git checkout {tmp_path}`" in str(error.value)


def test_what_was_converted_is_described():
    target = read_target(ORIGINAL, CONFIG)
    assert describe_conversion(ORIGINAL, target) == {
        "checkpoint": "target_llamagen.pt",
        "sha256": hashlib.sha256(ORIGINAL.read_bytes()).hexdigest(),
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
