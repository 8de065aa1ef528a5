"""Sizes of a target as the config sections `target` and `text` give them.

Read while Snakemake builds the workflow: no torch here.
"""

from __future__ import annotations

from typing import Any

from lantern.models.config import FFN_MULTIPLE, LLAMAGEN_SIZES
from lantern.models.families import FAMILIES

CHAMELEON = ("anole", "lumina")  # those of text.encoder whose published draft models see the prompt's ids
FROM_FILES = ("t5", *FAMILIES)  # those of text.encoder that read text.checkpoint
NUM_WORD_IDS = 64  # rows of the table in which the embedded data set's words are looked up, more than it has words


def resolve_size(settings: dict[str, Any]) -> dict[str, Any]:
    """Config section `target` with LlamaGen's numbers of the named `size`, if any, in place of its own."""
    name = settings.get("size")
    if name is None:
        return dict(settings)
    if str(name) not in LLAMAGEN_SIZES:
        raise ValueError(f"config key target.size must be one of {', '.join(LLAMAGEN_SIZES)}, got {name!r}")
    return {**settings, **LLAMAGEN_SIZES[str(name)], "ffn_multiple": FFN_MULTIPLE}


def prompt_sizes(text: dict[str, Any]) -> dict[str, Any]:
    """What config section `text` decides of a `TargetConfig`: captions' features; tokens, but for the null prompt,
    which the tokenizer says; words' ids, the last of which is the null prompt; or classes, the null class last.
    """
    if text["encoder"] == "classes":
        return {"num_text_tokens": 1, "num_prompt_ids": text["num_classes"] + 1, "null_ids": (text["num_classes"],)}
    if (family := FAMILIES.get(text["encoder"])) is not None:
        return {"num_text_tokens": text["max_tokens"], "num_prompt_ids": family.num_ids}
    if text["encoder"] == "word_ids":
        ids = {"num_prompt_ids": NUM_WORD_IDS, "null_ids": (NUM_WORD_IDS - 1,)}
        return {"num_text_tokens": text["max_tokens"], **ids}
    return {"num_text_tokens": text["max_tokens"], "caption_dim": text["caption_dim"]}
