"""The Slurm profile fits the rules and the default profile. Needs no Slurm."""

import re

import yaml

from tiny_run import ROOT

PROFILE = ROOT / "profiles" / "slurm"
ENTRIES = yaml.safe_load((PROFILE / "config.yaml").read_text())


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
