"""How many prompts a set must have.

Apart from `config.cross_checks`: the script that writes prompts uses it, and edits there must not write them again.
"""

from __future__ import annotations

from typing import Any


def check_prompt_count(name: str, num: int, metrics: dict[str, Any], figures: dict[str, Any]) -> None:
    """Checks that a prompt set of `num` prompts is large enough for `metrics` and `figures` (config sections)."""
    needs = {
        "metrics.prc_neighbours": metrics["prc_neighbours"] + 1,
        "figures.sample_prompts": figures["sample_prompts"] if name == metrics["headline_prompt_set"] else 0,
    }
    for key, needed in needs.items():
        if num < needed:
            raise ValueError(f"prompt set {name} has {num} prompts but config key {key} needs at least {needed}")
