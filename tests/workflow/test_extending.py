"""The examples of docs/extending.md work as the page prints them, and need no other file."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from helpers.paths import ROOT
from helpers.tiny_models import generate, verifier_from
from helpers.tiny_run import Workflow
from lantern.acceptance.relaxed_sets import AdditiveBound, MultiplicativeBound
from lantern.codebook import nearest_codes
from lantern.methods import MethodSpec
from lantern.sampling import SamplingConfig
from lantern_pipeline.measure.exactness.output_distribution import VerifiedNodes
from lantern_pipeline.measure.exactness.total_variation import distribution_of_method
from lantern_pipeline.tables.method_labels import label_method

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
PARTS = {"tree": "chain3", "drafts": "sampled", "acceptance": "capped:Capped", "k": 4, "lambda_": 3.0, "cap": 0.2}
# heading of an example in Lantern -> its files, and its check
OURS = {
    "An acceptance in Lantern": (
        "lantern_methods/typical.py",
        "lantern_methods/__init__.py",
        "check_acceptance",
    ),
    "A metric": (
        "workflow/lantern_pipeline/measure/quality/contrast.py",
        "workflow/lantern_pipeline/measure/registry.py",
        "check_metric",
    ),
    "A figure": (
        "workflow/lantern_pipeline/figures/lengths.py",
        "workflow/lantern_pipeline/plan/figures.py",
        "workflow/report/figures/lengths.rst",
        "check_figure",
    ),
    "A family of models": ("lantern_models/families.py", "lantern_models/cards/published.py", "check_family"),
}


def files_of(heading: str) -> list[tuple[str, str, str]]:
    """Return (path, language, block) of each block below a heading of the page."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.S | re.M)
    return re.findall(r"`([\w./]+)`[^`]*:\n\n```(\w+)\n(.*?)```", section, re.S)


def apply_example(heading: str, folder: Path) -> None:
    """Write the new files of an example below a folder, and apply its diffs to files there."""
    for path, language, block in files_of(heading):
        file = folder / path
        if language != "diff":
            assert not file.exists()
            file.write_text(block, encoding="utf-8")
            continue
        text = file.read_text(encoding="utf-8")
        for hunk in block.split("@@\n"):
            lines = hunk.splitlines(keepends=True)
            old = "".join(line[1:] for line in lines if line.startswith(" "))
            assert text.count(old) == 1, f"{path} has other lines than the example: {old}"
            text = text.replace(old, "".join(line[1:] for line in lines))
        file.write_text(text, encoding="utf-8")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with the files of the two custom classes."""
    for heading in ("A custom acceptance", "A custom drafter"):
        apply_example(heading, tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("capped", "line_above"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Return a copy of Lantern without its tests, with all examples of additions to Lantern."""
    folder = tmp_path_factory.mktemp("project")
    for name in (*(path.name for path in ROOT.glob("lantern*/")), "workflow"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Snakefile", "config.yaml", "environment.yml"):
        shutil.copy(ROOT / name, folder)
    (folder / "models").symlink_to(ROOT / "models")
    for heading in OURS:
        apply_example(heading, folder)
    return folder


@pytest.mark.parametrize("heading", OURS)
def test_an_example_in_lantern_takes_these_files_and_changes_lines_that_are_there(heading, tmp_path):
    files = files_of(heading)
    assert tuple(path for path, *_ in files) == OURS[heading][:-1]
    for path, language, _ in files:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        if language == "diff":
            shutil.copy(ROOT / path, tmp_path / path)
    apply_example(heading, tmp_path)


@pytest.mark.slow
def test_the_examples_in_lantern_work(project):
    """The checks of `extending_checks` run on the packages of the copy."""
    folders = [project, project / "workflow", ROOT / "benchmarks", ROOT / "tests"]
    lines = ["import pathlib", "from helpers import extending_checks as c", f"folder = pathlib.Path({str(project)!r})"]
    code = "; ".join([*lines, *(f"c.{check}(folder)" for *_, check in OURS.values())])
    run_checks(code, folders, project)


def run_checks(code, folders, folder):
    """Run code in a new Python with these folders on its path."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "PYTHONSAFEPATH": "1"}
    found = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


@pytest.mark.slow
def test_the_preset_of_a_package_is_known_by_its_name(tmp_path):
    """The folder is on Python's path, with the metadata that pip would write."""
    for heading in ("A custom acceptance", "A preset in a package"):
        apply_example(heading, tmp_path)
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ((group, entries),) = project["entry-points"].items()
    metadata = tmp_path / "capped_lantern-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 1\n")
    lines = [f"{name} = {module}" for name, module in entries.items()]
    (metadata / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    code = (
        f"import pathlib; from helpers import extending_checks as c; c.check_package(pathlib.Path({str(tmp_path)!r}))"
    )
    folders = [tmp_path, *(ROOT / name for name in ("", "workflow", "benchmarks", "tests"))]
    run_checks(code, folders, ROOT)


@pytest.mark.slow
def test_the_workflow_draws_the_figure_of_the_page(project):
    workflow = Workflow(project, config=(), project=project)
    code, output = workflow.run("--dry-run", "results/embedded/figures/fig_s_lengths.png")
    assert code == 0 and "rule draw_lengths" in output, output


def test_the_line_above_is_drafted_and_the_images_are_the_autoregressive_ones(models, folder):
    spec = MethodSpec.of("line_above", tree="chain3", drafts="line_above:LineAbove")
    assert label_method(spec.to_dict()) == "line above (chain3, line_above:LineAbove)"
    for temperature in (0.0, 1.0):
        found, expected = (
            generate(models, each, temperature=temperature) for each in (spec, MethodSpec.of("autoregressive"))
        )
        assert torch.equal(found.codes, expected.codes)
        assert found.target_forwards.sum() < expected.target_forwards.sum()


def test_the_rule_takes_the_smaller_set_and_has_a_label_and_a_total_variation(folder):
    spec = MethodSpec.of("capped", **PARTS)
    table = nearest_codes(torch.randn(24, 4, generator=torch.Generator().manual_seed(3)), 20)
    verifier = verifier_from(spec, SamplingConfig(), table)
    logits = 1.5 * torch.randn(2, 20, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target, draft = logits[0].softmax(-1), (logits[0] + logits[1]).softmax(-1)
    children = draft.topk(1).indices
    sets = (
        verifier.rejection.acceptance,
        AdditiveBound(table, k=4, delta=0.2),
        MultiplicativeBound(table, k=4, lambda_=3),
    )
    codes = sets[0].codes_of(children[:, 0])
    own, *ours = (part.grow(codes, target.gather(-1, codes)).is_member for part in sets)
    assert torch.equal(own, ours[0] & ours[1])
    assert own.any() and not torch.equal(own, ours[0]) and not torch.equal(own, ours[1])
    nodes = VerifiedNodes(target, draft, children, torch.arange(20) % 5, torch.zeros(20).long())
    kind, found = distribution_of_method(nodes, verifier, 10, 0)
    assert kind == "enumeration" and 0 < found.tv_from(target).mean() < 1
    assert label_method(spec.to_dict()) == "capped (chain3, sampled, capped:Capped) k 4, λ 3, cap 0.2"
    with pytest.raises(ValueError, match=r"cap of capped must be in \[0, 1\], got 2"):
        MethodSpec.of("capped", **PARTS | {"cap": 2})


def test_it_decodes_and_its_code_is_part_of_the_method(models, folder):
    spec = MethodSpec.of("capped", **PARTS)
    codes, expected = (
        generate(models, each).codes for each in (spec, MethodSpec.of("eagle1", tree="chain3", drafts="sampled"))
    )
    assert codes.shape == expected.shape and not torch.equal(codes, expected)
    with (folder / "capped.py").open("a") as file:
        file.write("# edited\n")
    assert MethodSpec.of("capped", **PARTS).code != spec.code != ""


def test_the_workflow_plans_the_overlay(folder):
    (folder / "models").symlink_to(ROOT / "models")
    code, output = Workflow(folder, (folder / "mine.yaml",), config=()).run("--dry-run")
    assert code == 0 and "capped-k20-lambda5-cap0.05" in output, output


@pytest.mark.slow
def test_what_else_lies_beside_an_overlay_is_never_run(folder, tmp_path):
    """Other files next to an overlay replace no library and do not run as Python starts.

    This holds for Snakemake and for jobs. A class that the overlay names is found.
    """
    for name in ("random", "sitecustomize", "usercustomize"):
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'a').write({name!r})\n")
    (folder / "models").symlink_to(ROOT / "models")
    arguments = ["--snakefile", ROOT / "Snakefile", "--directory", folder, "--cores", "1"]
    arguments += ["--configfile", ROOT / "config.yaml", folder / "mine.yaml"]
    wanted = "results/capped/prompts/seen.jsonl"
    command = [sys.executable, "-m", "snakemake", *map(str, arguments), "--", wanted]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert found.returncode == 0 and (folder / wanted).exists(), found.stderr
    assert not (tmp_path / "was_run").exists()
