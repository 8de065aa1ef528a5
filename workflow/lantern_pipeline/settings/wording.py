"""Helpers for error messages."""

from __future__ import annotations

import difflib


def closest(word: str, known: list[str]) -> str:
    """Return advice on an unknown name: the most similar known name, or all known names if none is similar."""
    near = difflib.get_close_matches(str(word), known, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"


def show(value: object) -> str:
    """Return a value as text for an error message, shortened to 60 characters."""
    text = repr(value) if isinstance(value, str) else "nothing" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
