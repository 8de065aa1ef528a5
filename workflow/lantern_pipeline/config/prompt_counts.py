"""Check of the number of prompts in a prompt set.

This check is in a separate file because the script that writes prompts imports it. Snakemake runs a script again if a
module that it imports changes. If all checks were in one file, an edit of any check would write the prompts again.
"""

from __future__ import annotations

from lantern_pipeline.settings.run_config import RunConfig


def check_prompt_count(name: str, num: int, config: RunConfig) -> None:
    """Check that a prompt set has enough prompts for the metrics and figures of a run.

    Args:
        name: name of the prompt set.
        num: its number of prompts.
        config: the checked config.

    Raises:
        ValueError: the set is too small. The message names the config key that needs more prompts.
    """
    is_headline = name == config.metrics.headline_prompt_set
    needs = {
        "metrics.prc_neighbours": config.metrics.prc_neighbours + 1,
        "figures.sample_prompts": config.figures.sample_prompts if is_headline else 0,
    }
    for key, needed in needs.items():
        if num < needed:
            raise ValueError(f"prompt set {name} has {num} prompts but config key {key} needs at least {needed}")
