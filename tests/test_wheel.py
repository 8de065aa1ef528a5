"""The wheel, built from the sdist, where torch, numpy, safetensors and tqdm alone are: the core imports, and draws."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from conftest import ROOT
from lantern_pipeline.pretrained import HOMES

CORE = ("torch", "numpy", "safetensors", "tqdm")

IMPORT_ALL = """
import importlib, importlib.util, pkgutil, sys
import lantern

assert "site-packages" in lantern.__file__ and "torch" not in sys.modules
names = [module.name for module in pkgutil.walk_packages(lantern.__path__, "lantern.")]
assert len(names) > 25
for name in names:
    importlib.import_module(name)
roots = {name.partition(".")[0] for name in sys.modules}
assert not roots & {"snakemake", "pandas", "matplotlib", "transformers", "lantern_pipeline"}, roots
assert importlib.util.find_spec("transformers") is None, "the environment is not bare"
"""

DRAW = """
import torch

import lantern
from lantern.decoding import DecodingModels
from lantern.models.draft import DraftModel
from lantern.models.target import TargetConfig, TargetModel
from lantern.models.vq16 import VQ16, VQ16Config
from lantern.sampling import SamplingConfig


class LetterEncoder:
    caption_dim, max_tokens = 16, 5

    def encode(self, texts):
        features = torch.zeros(len(texts), 5, 16)
        for row, text in enumerate(texts):
            features[row, -1, len(text) % 16] = 1.0
        return features, features.any(-1)


torch.manual_seed(0)
sizes = {"vocab_size": 12, "grid": 4}
target = TargetModel(TargetConfig(32, 2, 2, **sizes, num_text_tokens=5, caption_dim=16)).eval()
draft = DraftModel.from_target(target, 0)
vq = VQ16Config(grid=4, codebook_size=12, channels=32, channel_multipliers=(1, 2), latent_channels=8)
tokenizer = VQ16(vq).eval()
models = DecodingModels(target.prepare_for_decoding(), draft.prepare_for_decoding())
model = lantern.Model(models, tokenizer, LetterEncoder(), SamplingConfig(cfg_scale=2.0))

options = {"k": 4, "delta": 0.2, "tree_shape": {"num_nodes": 6, "depth": 1, "top_k": 4}}
images = model.draw(["a cat", "two dogs"], "lantern", **options)
assert images.codes.shape == (2, 16) and images.codes.max() < 12, images.codes
assert images.pixels.shape == (2, 8, 8, 3) and images.pixels.dtype == "uint8" and images.pixels.std() > 0
assert torch.equal(model.draw("a cat", "lantern", **options).codes[0], images.codes[0])
try:
    lantern.load("embedded")
except ModuleNotFoundError as error:
    assert "install it from a clone: pip install '.[pipeline]'" in str(error)
else:
    raise AssertionError("the extra `pipeline` is here: the environment is not bare")
"""

# With the packages of a run behind the wheel's.
LOAD = f"""
import sys

sys.path.append({str(Path(yaml.__file__).parents[1])!r})
import lantern, lantern_pipeline

assert "bare" in lantern.__file__ and "bare" in lantern_pipeline.__file__
images = lantern.load("embedded").draw("a red circle on grass", method="lantern", k=20, delta=0.1)
assert images.pixels.shape == (1, 48, 48, 3) and images.steps[0] < 64
assert "torch._dynamo" not in sys.modules  # PyTorch's compiler: a second and 150 MB
"""


def needed(names) -> set[str]:
    """These distributions and what they require, as far as it is installed here."""
    found, waiting = set(), list(names)
    while waiting:
        name = waiting.pop()
        try:
            requires = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # of another platform
        if name not in found:
            found.add(name)
            wanted = [Requirement(line) for line in requires]
            waiting += [part.name for part in wanted if part.marker is None or part.marker.evaluate({"extra": ""})]
    return found


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> Path:
    """Python of an environment with the wheel, and links to what the core needs."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(ROOT / "lantern", source / "lantern")
    shutil.copytree(ROOT / "workflow" / "lantern_pipeline", source / "workflow" / "lantern_pipeline")
    for name in ("pyproject.toml", "README.md", "LICENSE", "config.yaml"):
        shutil.copy(ROOT / name, source)
    for name in ("models/embedded", "experiments"):
        shutil.copytree(ROOT / name, source / name)
    (source / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "results.csv", source / "docs")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    sdist = f"from setuptools import build_meta; build_meta.build_sdist({str(folder)!r})"
    subprocess.run([sys.executable, "-c", sdist], cwd=source, check=True, capture_output=True)
    (packed,) = folder.glob("lantern_decoding-*.tar.gz")
    build = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder, packed]
    subprocess.run([*pip, *build], check=True)
    (wheel,) = folder.glob("lantern_decoding-*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "bare"], check=True)
    (packages,) = (folder / "bare").glob("lib/python*/site-packages")
    python = ["--python", folder / "bare" / "bin" / "python"]
    subprocess.run([*pip, *python, "install", "--no-deps", "--no-index", "--no-compile", wheel], check=True)
    for name in needed(CORE):
        for file in importlib.metadata.files(name):
            place = packages / file.parts[0]
            if file.parts[0] not in ("..", "__pycache__") and not place.exists():
                place.symlink_to(Path(importlib.metadata.distribution(name).locate_file(file.parts[0])))
    return folder / "bare" / "bin" / "python"


def test_the_core_imports_and_draws_with_little_around_it(bare, tmp_path):
    command = [bare, "-I", "-c", IMPORT_ALL + DRAW]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_wheel_brings_the_weights_that_prompts_are_drawn_from(bare, tmp_path):
    done = subprocess.run([bare, "-I", "-c", LOAD], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    home = bare.parents[1] / "share" / "lantern"
    assert (home / "experiments" / "llamagen_stage1.yaml").is_file() and (home / "config.yaml").is_file()
    assert (home / "docs" / "results.csv").is_file()
    assert HOMES[-1] == Path(sys.prefix, "share", "lantern")


def test_the_wheel_says_what_it_needs(bare):
    (metadata,) = (bare.parents[1]).glob("lib/python*/site-packages/lantern_decoding-*.dist-info/METADATA")
    required = [line for line in metadata.read_text().splitlines() if line.startswith("Requires-Dist")]
    core = [line for line in required if "extra ==" not in line]
    assert sorted(Requirement(line.partition(":")[2]).name for line in core) == sorted(CORE)


def test_the_command_asks_for_what_it_needs(bare, tmp_path):
    command = [bare, "-I", "-c", "from lantern_pipeline.cli import app; app()", "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert (
        done.stderr.strip()
        == "lantern: the command needs more than the core; install it from a clone: pip install '.[pipeline]'"
    )
