"""Check of the number of prompts in a prompt set.

It has a file of its own because the script that writes prompts imports it, and runs again if an imported module
changes. In one file with the other checks, an edit of any check would write the prompts again.
"""

from __future__ import annotations

from lantern_pipeline.settings.run_config import RunConfig


def check_prompt_count(name: str, num: int, config: RunConfig) -> None:
    """Raise a ValueError if a prompt set has too few prompts for the metrics and figures of a run."""
    is_headline = name == config.metrics.headline_prompt_set
    needs = {
        # the neighbours of an image are other images of the set
        "metrics.prc_neighbours": config.metrics.prc_neighbours + 1,
        "figures.sample_prompts": config.figures.sample_prompts if is_headline else 0,
    }
    for key, needed in needs.items():
        if num < needed:
            raise ValueError(f"prompt set {name} has {num} prompts but config key {key} needs at least {needed}")
