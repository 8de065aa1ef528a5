"""The Slurm profile fits the rules and the default profile. Needs no Slurm."""

import re

import pytest
import yaml

from cluster_run import PROFILE
from tiny_run import ROOT

ENTRIES = yaml.safe_load((PROFILE / "config.yaml").read_text())
RULES = {
    name
    for file in (ROOT / "workflow" / "rules").glob("*.smk")
    for pair in re.findall(r"^ *(?:rule (\w+):|use rule \w+ as (\w+) with:)", file.read_text(), re.M)
    for name in pair
    if name
}


@pytest.mark.parametrize("section", ["set-resources", "groups"])
def test_every_rule_of_the_profile_exists(section):
    assert set(ENTRIES[section]) <= RULES


def test_every_drawing_rule_is_in_the_group_of_the_report():
    drawing = {rule for rule in RULES if rule.startswith("draw_")}
    grouped = {rule for rule, group in ENTRIES["groups"].items() if group == "report"}
    assert drawing == {rule for rule in grouped if rule.startswith("draw_")}
    assert ENTRIES["group-components"]["report"] >= len(grouped)


def test_what_both_profiles_set_is_the_same():
    default = yaml.safe_load((ROOT / "profiles" / "default" / "config.yaml").read_text())
    # The default profile is always loaded too, and wins. Its `resources` come as a list there.
    default["resources"] = dict(entry.split("=") for entry in default["resources"])
    shared = {**ENTRIES, "resources": {name: str(value) for name, value in ENTRIES["resources"].items()}}
    assert {name: shared.get(name) for name in default} == default


def test_each_attempt_asks_for_more():
    for rule, wanted in ENTRIES["set-resources"].items():
        for name, expression in wanted.items():
            first, second = (eval(str(expression), {"attempt": attempt}) for attempt in (1, 2))
            assert second == 2 * first or rule == "publish_tables", (rule, name)


def test_a_partition_takes_the_last_attempt_of_every_rule():
    partitions = yaml.safe_load((PROFILE / "partitions.yaml").read_text())["partitions"]
    last = {"attempt": ENTRIES["restart-times"] + 1}
    for rule, wanted in ENTRIES["set-resources"].items():
        memory = eval(str(wanted.get("mem_mb", 0)), last)
        assert all(memory <= partition["max_mem_mb"] for partition in partitions.values()), rule
        assert eval(str(wanted.get("runtime", 0)), last) <= 2 * 24 * 60, rule
