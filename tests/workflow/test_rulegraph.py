"""Tests that the published graph of rules shows existing rules."""

import re

import rulegraph

from helpers.paths import ROOT


def test_every_box_is_a_rule_and_the_picture_shows_it():
    rules = {
        rule
        for file in (ROOT / "workflow" / "rules").glob("*.smk")
        for rule in re.findall(r"^ *rule (\w+):", file.read_text(), re.M)
    }
    picture = (ROOT / "docs" / "rulegraph.svg").read_text()
    assert set(rulegraph.BOXES) <= rules and all(f">{rule}<" in picture for rule in rulegraph.BOXES)
