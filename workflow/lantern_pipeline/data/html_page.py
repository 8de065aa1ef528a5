"""Pages in one HTML file that needs no network: a template of our own, filled with data."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def data_uri(pixels: np.ndarray, kind: str = "png", **options: Any) -> str:
    """(S, S, 3) uint8 -> image file without metadata as a data URI; `kind` and `options` are Pillow's."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format=kind, **options)
    return f"data:image/{kind};base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def to_json(data: Any) -> str:
    """JSON as it stands in a page, ASCII: every "<" is written as an escape, so that no text can end its element."""
    return json.dumps(data, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")


def fill_page(template: Path, data: Mapping[str, Any]) -> str:
    """Puts the data and the policy into the template's [[data]] and [[policy]].

    The policy forbids every request and runs the template's own script and styles only, known by their hashes.
    """
    text = template.read_text(encoding="utf-8")
    policy = [
        "default-src 'none'",
        "img-src data:",
        f"style-src {_hash_of('style', text)}",
        f"script-src {_hash_of('script', text)}",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    parts = {"policy": "; ".join(policy), "data": to_json(data)}
    return re.sub(r"\[\[(policy|data)\]\]", lambda found: parts[found[1]], text)


def _hash_of(element: str, template: str) -> str:
    text = re.search(rf"<{element}>(.*?)</{element}>", template, re.DOTALL)[1]
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
