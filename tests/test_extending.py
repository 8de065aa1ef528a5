"""The examples of docs/extending.md: their edits, made in a copy of the project, work and touch at most four files."""

import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from conftest import ROOT

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
SCRIPTS = ROOT / "tests" / "extending"
EXAMPLES = {
    "A new acceptance rule": "acceptance_rule.py",
    "A new metric": "metric.py",
    "A new figure": "figure.py",
}
# "A new file `path`:", "In `path`, below the line `...`:" or "... instead of `...`:", or a command; then a code block
EDIT = re.compile(
    r"^(?:A new file `(?P<new>[^`]+)`"
    r"|In `(?P<path>[^`]+)`, (?P<how>below the line|instead of) `(?P<anchor>[^`]+)`"
    r"|[^\n]*(?P<command>in the project's folder)):"
    r"\n\n```\w+\n(?P<code>.*?\n)```$",
    re.M | re.S,
)


def steps_of(title):
    """The edits of a section of the page; every block of code must be one."""
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    steps = list(EDIT.finditer(section))
    assert len(steps) == section.count("```") / 2 > 0, "a block of code without a line that says where it goes"
    return steps


def apply(step, folder, environment):
    if step["command"]:
        program, *arguments = shlex.split(step["code"])
        assert program == "python"
        subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, check=True)
    elif step["new"]:
        assert not (folder / step["new"]).exists()
        (folder / step["new"]).write_text(step["code"], encoding="utf-8")
    else:
        text = (folder / step["path"]).read_text(encoding="utf-8")
        (folder / step["path"]).write_text(edited(text, step), encoding="utf-8")


def edited(text, step):
    if step["how"] == "instead of":
        assert text.count(step["anchor"]) == 1, step["anchor"]
        return text.replace(step["anchor"], step["code"].strip())
    lines = text.splitlines(keepends=True)
    (place,) = [number for number, line in enumerate(lines) if line.strip() == step["anchor"]]
    return "".join([*lines[: place + 1], step["code"], *lines[place + 1 :]])


def copy_project(folder):
    """The files under version control but the tests."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        if not name.startswith("tests/") and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder


def touched(folder):
    """Files of the copy that are new or differ, compiled ones and what Snakemake keeps left out."""
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    kept = [path for path in files if not {"__pycache__", ".snakemake"} & set(path.parts)]
    return [
        path.as_posix()
        for path in kept
        if not (ROOT / path).is_file() or (ROOT / path).read_bytes() != (folder / path).read_bytes()
    ]


@pytest.mark.parametrize("title", EXAMPLES)
def test_an_example_edits_at_most_four_files_and_works(title, tmp_path):
    project, scratch = copy_project(tmp_path / "project"), tmp_path / "scratch"
    scratch.mkdir()
    helpers = [ROOT / "tests", ROOT / "tests" / "pipeline", ROOT / "tests" / "pipeline" / "metrics"]
    path = os.pathsep.join(map(str, [project, project / "workflow", *helpers]))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    for step in steps_of(title):
        apply(step, project, environment)
    names = touched(project)
    assert 0 < len(names) <= 4, names
    python = [name for name in names if name.endswith(".py")]
    for check in (["check"], ["format", "--check"]):
        subprocess.run([sys.executable, "-m", "ruff", *check, "--no-cache", *python], cwd=project, check=True)
    command = [sys.executable, str(SCRIPTS / EXAMPLES[title]), str(project)]
    result = subprocess.run(
        command, cwd=scratch, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert result.returncode == 0, result.stdout
