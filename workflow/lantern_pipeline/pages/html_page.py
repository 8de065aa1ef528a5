"""Pages in one HTML file that needs no network: templates of our own in one shell, filled with data."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

SHELL = Path(__file__).with_name("page_shell.html")


def data_uri(pixels: np.ndarray, kind: str = "png", **options: int) -> str:
    """(S, S, 3) uint8 -> image file without metadata as a data URI; `kind` and `options` are Pillow's."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format=kind, **options)
    return f"data:image/{kind};base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def to_json(data: object) -> str:
    """JSON as it stands in a page, ASCII: every "<" is written as an escape, so that no text can end its element."""
    return json.dumps(data, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")


def fill_page(template: Path, data: Mapping[str, object]) -> str:
    """Puts the template's title, style, body and script, and the data, into the shell that all pages share.

    The page's policy forbids every request and runs its own script and styles only, known by their hashes.
    """
    text, shell = template.read_text(encoding="utf-8"), SHELL.read_text(encoding="utf-8")
    names = {"title": "title", "style": "style", "body": "main", "script": "script"}
    parts = {name: _content_of(tag, text).removeprefix("\n").removesuffix("\n") for name, tag in names.items()}
    page = re.sub(r"\[\[(title|style|body|script)\]\]", lambda found: parts[found[1]], shell)
    policy = [
        "default-src 'none'",
        "img-src data:",
        f"style-src {_hash_of('style', page)}",
        f"script-src {_hash_of('script', page)}",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    last = {"policy": "; ".join(policy), "data": to_json(data)}
    return re.sub(r"\[\[(policy|data)\]\]", lambda found: last[found[1]], page)


def _hash_of(element: str, page: str) -> str:
    text = _content_of(element, page)
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _content_of(element: str, page: str) -> str:
    """Return what stands in the first element of a name; a ValueError if the page has none."""
    match = re.search(rf"<{element}>(.*?)</{element}>", page, re.DOTALL)
    if match is None:
        raise ValueError(f"a page must have an element {element}, got none; add it to the template")
    return match[1]
