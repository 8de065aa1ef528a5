"""Words of error sentences: a value, and the nearest known name."""

from __future__ import annotations

import difflib


def closest(word: str, known: list[str]) -> str:
    """Returns the part of a sentence that helps with a misspelt word: the nearest known one, or all of them."""
    near = difflib.get_close_matches(str(word), known, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"


def show(value: object) -> str:
    """Writes a value for an error sentence, shortened."""
    text = repr(value) if isinstance(value, str) else "nothing" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
