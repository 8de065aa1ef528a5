"""HTML pages: jinja2 templates of this folder, filled with data."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup
from PIL import Image


def data_uri(pixels: np.ndarray, kind: str = "png", **options: int) -> str:
    """Encode an image, uint8 (height, width, 3), as a data URI without metadata, with Pillow's format and options."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format=kind, **options)
    return f"data:image/{kind};base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def to_json(data: object) -> Markup:
    """Write data as JSON in ASCII, for a script element of a page."""
    # `htmlsafe_json_dumps` escapes <, >, & and ', so that no text in the data can end the script element.
    return htmlsafe_json_dumps(data, ensure_ascii=True, separators=(",", ":"))


def fill_page(template: str, data: Mapping[str, object]) -> str:
    """Fill a template, a file that extends page_shell.html, with the JSON values that its script reads."""
    return TEMPLATES.get_template(template).render(data=to_json(data))


def _csp_hash(text: str) -> Markup:
    """Return the hash by which a content security policy allows a style or script element with this text."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Markup(f"'sha256-{digest}'")


TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    # A misspelled name in a template must fail, not print nothing.
    undefined=StrictUndefined,
    trim_blocks=True,
    keep_trailing_newline=True,
)
TEMPLATES.filters["csp_hash"] = _csp_hash
