"""Tests of what readers and editors see of config keys: config.yaml, its page and its schema."""

import re

import pytest

from helpers.configs import load_config
from helpers.paths import ROOT
from lantern_pipeline.plan.run import load_run
from lantern_pipeline.plan.validate import load_yaml
from lantern_pipeline.schema.documents import LONGEST_COMMENT, documents
from lantern_pipeline.schema.editor_schema import SCHEMA_PATH

CONFIG = ROOT / "config.yaml"
# Title of an example on top of config.yaml -> its overlay.
RECIPES = {
    title: re.sub(r"(?m)^#      ", "", body)
    for title, body in re.findall(r"(?m)^# \d\. (.*)\n(?:# {3,5}\S.*\n)*((?:#      .*\n)+)", CONFIG.read_text())
}


def test_the_three_documents_are_those_of_the_models():
    stale = [path.name for path, text in documents().items() if path.read_text() != text]
    assert stale == [], "run PYTHONPATH=workflow python -m lantern_pipeline.schema.documents"


def test_lines_and_comments_of_the_default_config_are_short():
    for line in CONFIG.read_text().splitlines():
        assert len(line) < 100, line
        value, _, comment = line.partition("  # ")
        assert not value or len(comment) <= LONGEST_COMMENT, line


def test_every_section_of_the_schema_is_closed_and_every_key_is_described():
    def visit(schema, path):
        # A variant has any sections, and the core knows the keys of a method.
        if path.endswith((".variants.NAME", ".methods[]")):
            return
        assert schema.get("type") != "object" or "additionalProperties" in schema, path
        for name, inner in schema.get("properties", {}).items():
            assert inner.get("description"), f"{path}.{name}"
            visit(inner, f"{path}.{name}")
        for part, name in (("additionalProperties", ".NAME"), ("items", "[]")):
            if isinstance(schema.get(part), dict):
                visit(schema[part], path + name)

    visit(load_yaml(SCHEMA_PATH), "")


def test_editors_find_the_schema():
    for file in [CONFIG, ROOT / "workflow" / "resources.yaml", *(ROOT / "experiments").glob("*.yaml")]:
        hint = re.match(r"# yaml-language-server: \$schema=(\S+)\n", file.read_text())
        assert hint and (file.parent / hint[1]).resolve() == SCHEMA_PATH


@pytest.mark.parametrize(("title", "sets"), zip(RECIPES, ["mine", "seen", "coco"], strict=True))
def test_an_example_on_top_of_the_default_config_is_a_run(title, sets, tmp_path, monkeypatch):
    overlays = re.findall(r"--configfile (experiments/\S+)", CONFIG.read_text()) if "Slurm" in title else []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").symlink_to(ROOT / "models")
    (tmp_path / "mine.txt").write_text("a red circle on grass\n" * 6)
    (tmp_path / "mine.yaml").write_text(RECIPES[title])
    config = load_config([*(ROOT / name for name in overlays), "mine.yaml"])
    run = load_run(config, [], is_main=True, is_remote="Slurm" in title)
    assert run.config.experiment == "mine" and run.plan.prompt_sets == [sets] == run.config.latency.prompt_sets
    assert len(RECIPES[title].splitlines()) <= 5
