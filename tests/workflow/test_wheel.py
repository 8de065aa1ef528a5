"""Slow tests of the wheel, built from the sdist, with torch, numpy, safetensors and tqdm only: docs/library.md runs."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from helpers.paths import ROOT

pytestmark = pytest.mark.slow

CORE = ("torch", "numpy", "safetensors", "tqdm", "typing_extensions")

IMPORT_ALL = """
import importlib, importlib.util, pkgutil, sys
import lantern

assert "site-packages" in lantern.__file__ and "torch" not in sys.modules
neighbours = {"lantern_methods", "lantern_models", "lantern_audit"}
numbers = []
for package in ("lantern", *sorted(neighbours)):
    place = importlib.import_module(package).__path__
    names = [module.name for module in pkgutil.walk_packages(place, f"{package}.")]
    numbers.append(len(names))
    for name in names:
        if name.rpartition(".")[2] not in ("t5", "caption_cleaning", "token_prompts"):  # of the extra `transformers`
            importlib.import_module(name)
    if package == "lantern":
        assert not neighbours & set(sys.modules), "the core imports a neighbour"
assert min(numbers) > 5, numbers
roots = {name.partition(".")[0] for name in sys.modules}
assert not roots & {"snakemake", "pandas", "matplotlib", "transformers", "lantern_pipeline"}, roots
assert "torch._dynamo" not in sys.modules  # PyTorch's compiler: a second and 150 MB
assert importlib.util.find_spec("transformers") is None, "the environment is not bare"
"""


def needed(names) -> set[str]:
    """Return these distributions and their requirements, if they are installed here."""
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
    """Return the Python of an environment with the wheel, and links to the packages that the core needs."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for package in (*ROOT.glob("lantern*/"), ROOT / "workflow" / "lantern_pipeline"):
        shutil.copytree(package, source / package.relative_to(ROOT))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "models", source / "models")
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


def run_bare(bare, code: str, folder: Path) -> str:
    done = subprocess.run([bare, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_imports_with_little_around_it(bare, tmp_path):
    run_bare(bare, IMPORT_ALL, tmp_path)


def test_the_library_page_runs_where_the_core_alone_is_installed(bare, tmp_path):
    """All blocks that need no extra run in order, as a reader would type them. The class is in its own file."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "library.md").read_text(), re.DOTALL)
    (own,) = [block for block in blocks if "class Halved" in block]
    (tmp_path / "halved.py").write_text(own)
    needs_an_extra = ("import transformers", "from transformers", "images.save")
    plain = [block for block in blocks if block != own and not any(word in block for word in needs_an_extra)]
    assert len(plain) == 4
    output = run_bare(bare, "\n".join(plain), tmp_path)
    assert "(1, 48, 48, 3) uint8" in output and "'acceptance': 'halved:Halved'" in output
    exact = [line for line in output.splitlines() if line.startswith(("jacobi:", "hybrid:"))]
    assert len(exact) == 2 and all(line.endswith("2 of 2 images equal") for line in exact), output


def test_the_shipped_models_come_with_the_wheel_and_what_needs_an_extra_says_which(bare, tmp_path):
    code = """
from pathlib import Path
import lantern
from lantern_models.cards.published import CARDS
from lantern_models.text.encoders import make_text_encoder
for name in ("embedded", "fashion"):
    model = lantern.load(name)
    print(model.tokenizer.config.image_size)
for call in (
    lambda: model.generate("a dark patterned dress").pictures(),
    lambda: lantern.load("janus-pro-1b"),
    lambda: make_text_encoder(CARDS["llamagen_stage1"].prompts, Path("t5")),
):
    try:
        call()
    except (ModuleNotFoundError, FileNotFoundError) as error:
        print(error)
"""
    *sizes, pictures, janus, t5 = run_bare(bare, code, tmp_path).strip().splitlines()
    assert sizes == ["48", "32"]
    assert pictures == "saving images needs Pillow; install it from a clone: pip install '.[pictures]'"
    assert "files of janus-pro-1b are not here" in janus
    assert t5 == "the text encoder t5 needs ftfy; install it from a clone: pip install '.[transformers]'"


def test_the_wheel_says_what_it_needs(bare):
    (metadata,) = (bare.parents[1]).glob("lib/python*/site-packages/lantern_decoding-*.dist-info/METADATA")
    required = [line for line in metadata.read_text().splitlines() if line.startswith("Requires-Dist")]
    core = [line for line in required if "extra ==" not in line]
    assert sorted(Requirement(line.partition(":")[2]).name for line in core) == sorted(CORE)


def test_the_wheel_holds_the_templates_of_pages_and_nothing_of_the_live_page(bare):
    (packed,) = (bare.parents[1]).glob("lib/python*/site-packages/lantern_pipeline/pages")
    source = ROOT / "workflow" / "lantern_pipeline" / "pages"
    assert {path.name for path in packed.glob("*.*")} == {path.name for path in source.glob("*.*")}
    assert {path.suffix for path in packed.glob("*.*")} == {".py", ".html", ".css"}


def test_the_command_asks_for_what_it_needs(bare, tmp_path):
    command = [bare, "-I", "-c", "from lantern_pipeline.cli import app; app()", "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert (
        done.stderr.strip()
        == "lantern: the command needs more than the core; install it from a clone: pip install '.[pipeline]'"
    )


def test_the_commands_work_from_a_wheel(finished, bare, tmp_path):
    """The packages that the commands need are those of this Python."""
    (packages,) = (bare.parents[1]).glob("lib/python*/site-packages")

    def lantern(*arguments):
        code = f"import lantern_pipeline.cli as cli; assert cli.__file__.startswith({str(packages)!r}); cli.app()"
        command = [sys.executable, "-c", code, *map(str, arguments)]
        environment = os.environ | {"PYTHONPATH": str(packages), "PYTHONNOUSERSITE": "1"}
        result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    results = finished.folder / "results"
    assert "images generated again: 1 equal" in lantern("verify", results / "tiny", "--images", 1)
    assert "wrote sample.png" in lantern("sample", "a red circle on grass", "--results", results)
    assert (tmp_path / "sample.png").read_bytes().startswith(b"\x89PNG")
