"""Config sections as scripts use them. Apart from `config.validate`, whose edits must not train anything again.

Imported while Snakemake reads the workflow: no torch here.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")


def pick(cls: type[T], settings: dict[str, Any], **more: Any) -> T:
    """Builds a settings dataclass from a config section, which may hold keys of other dataclasses as well.

    Args:
        cls: the dataclass.
        settings: config section.
        more: fields that come from elsewhere.

    Returns:
        The instance; fields in neither keep their default.
    """
    names = {field.name for field in fields(cls)}
    return cls(**{key: value for key, value in settings.items() if key in names}, **more)


def check_prompt_count(name: str, num: int, metrics: dict[str, Any], figures: dict[str, Any]) -> None:
    """Checks that a prompt set is large enough for the metrics and the sample grid.

    Args:
        name: of the prompt set.
        num: prompts in it.
        metrics: config section.
        figures: config section.

    Raises:
        ValueError: too few prompts; names the key that asks for more.
    """
    needs = {
        "metrics.kid_subset_size": metrics["kid_subset_size"],
        "metrics.prc_neighbours": metrics["prc_neighbours"] + 1,
        "figures.sample_prompts": figures["sample_prompts"] if name == metrics["headline_prompt_set"] else 0,
    }
    for key, needed in needs.items():
        if num < needed:
            raise ValueError(f"prompt set {name} has {num} prompts but config key {key} needs at least {needed}")
