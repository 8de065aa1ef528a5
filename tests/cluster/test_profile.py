"""The Slurm profile fits the rules and the default profile. Needs no Slurm."""

import re

import yaml

from conftest import load_config_of_all_figures
from lantern_pipeline.config.figures import figure_table
from lantern_pipeline.config.paths import RunPlan
from lantern_pipeline.fetch.entries import parse_entries
from tiny_run import ROOT

PROFILE = ROOT / "profiles" / "slurm"
DEFAULT = load_config_of_all_figures()
ENTRIES = yaml.safe_load((PROFILE / "config.yaml").read_text())
FIGURES = figure_table(RunPlan(DEFAULT, parse_entries(DEFAULT["resources"])), DEFAULT)
RULES = {f"draw_{name}" for name in FIGURES} | {
    name
    for file in (ROOT / "workflow" / "rules").glob("*.smk")
    for pair in re.findall(r"^ *(?:rule (\w+):|use rule \w+ as (\w+) with:)", file.read_text(), re.M)
    for name in pair
    if name
}


def test_every_rule_of_the_profile_exists():
    assert set(ENTRIES["groups"]) <= RULES


def test_the_group_of_the_report_holds_all_figures():
    """Drawing rules name the group themselves."""
    rule = (ROOT / "workflow" / "rules" / "report.smk").read_text().split('f"draw_{name}"')[1].split("script:")[0]
    assert re.search(r'group:\s+"report"', rule)
    grouped = [name for name, group in ENTRIES["groups"].items() if group == "report"]
    assert ENTRIES["group-components"]["report"] >= len(grouped) + len(FIGURES)


def test_what_both_profiles_set_is_the_same():
    default = yaml.safe_load((ROOT / "profiles" / "default" / "config.yaml").read_text())
    # The default profile is always loaded too, and wins. Its `resources` come as a list there.
    default["resources"] = dict(entry.split("=") for entry in default["resources"])
    shared = {**ENTRIES, "resources": {name: str(value) for name, value in ENTRIES["resources"].items()}}
    assert {name: shared.get(name) for name in default} == default


def test_memory_and_time_grow_with_the_attempt():
    default = [ENTRIES["default-resources"][name] for name in ("mem_mb", "runtime")]
    assert all(eval(value, {"attempt": 2}) == 2 * eval(value, {"attempt": 1}) for value in default)
    for file in (ROOT / "workflow" / "rules").glob("*.smk"):
        fixed = re.findall(r"(?:mem_mb|runtime)=\d.*", file.read_text())
        assert not fixed, f"{file.name}: {fixed} do not grow"


def test_an_hour_without_an_answer_of_slurm_does_not_lose_jobs():
    assert ENTRIES["slurm-status-attempts"] / ENTRIES["max-status-checks-per-second"] >= 3600
