"""Tests that paths, links and commands in documentation and comments exist, and that texts stay short."""

import ast
import re
import subprocess

from helpers.paths import ROOT

FOLDERS = "benchmarks|docs|experiments|lantern(?:_audit|_methods|_models)?|profiles|reference|tests|workflow"
ENDINGS = "csv|html|json|md|py|sh|smk|svg|toml|yaml|yml"
TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split("\n")
TEXTS = [name for name in TRACKED if re.search(r"(\.(md|py|rst|smk|yaml|yml)|Makefile|Snakefile|\.ci/run)$", name)]
PAGES = [name for name in TRACKED if name.endswith(".md") and name != "CHANGELOG.md"]
EXAMPLES = {
    "docs/machines/my-laptop/bench.json",  # a reader's measurement
    "experiments/mine.yaml",  # a user's file
    "reference/metric_weights.json",  # a result
    "capped.py",
    "capped_preset.py",
    "halved.py",
    "line_above.py",
    "lantern_methods/typical.py",
    "workflow/lantern_pipeline/figures/lengths.py",
    "workflow/lantern_pipeline/measure/quality/contrast.py",
    "workflow/report/figures/lengths.rst",
}


def missing(names):
    return sorted(name for name in names if name not in EXAMPLES and not (ROOT / name.rstrip("/")).exists())


def test_paths_that_a_text_names_are_there():
    for name in TEXTS:
        if not name.startswith(("tests/", "CHANGELOG")):
            text = (ROOT / name).read_text()
            named = set(re.findall(rf"(?<![\w./<>{{}}@-])((?:{FOLDERS})/[\w./-]+\.(?:{ENDINGS}))\b", text))
            assert not missing(named), name


def test_what_a_page_points_to_is_there():
    """Checks folders and files in back quotes, bare names of code files, and links."""
    known = {path.rpartition("/")[2] for path in TRACKED}
    for name in PAGES:
        text = (ROOT / name).read_text()
        assert not missing(re.findall(rf"`((?:{FOLDERS})/[\w./-]*)`", text)), name
        assert not set(re.findall(r"`([\w-]+\.(?:py|smk))`", text)) - known - EXAMPLES, name
        links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
        assert not [link for link in links if link and not (ROOT / name).parent.joinpath(link).exists()], name


def test_make_knows_the_targets_that_pages_name():
    text = "\n".join((ROOT / name).read_text() for name in PAGES)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"`make ([a-z-]+)`", text)) <= targets


def test_the_readme_and_contributing_stay_short():
    readme = (ROOT / "README.md").read_text().splitlines()
    assert len(readme) <= 150 and max(len(line) for line in readme if not line.startswith("|")) <= 120
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= 45


def test_private_functions_are_described_in_a_line_or_two():
    """They have no sections, and no docstring only points to another. Overrides have `@override` instead."""
    wrong, num_read = [], 0
    for name in (name for name in TRACKED if re.match(r"(lantern\w*|workflow)/.*\.py$", name)):
        for node in ast.walk(ast.parse((ROOT / name).read_text())):
            if isinstance(node, ast.FunctionDef) and re.match(r"_(?!_)", node.name):
                text, num_read = ast.get_docstring(node) or "", num_read + 1
                is_pointer = re.search(r"\bsee `", text) and len(text.split()) <= 30
                if is_pointer or re.search(r"^(Args|Attributes):", text, re.M):
                    wrong.append(f"{name}: {node.name}")
    assert num_read > 400 and not wrong
