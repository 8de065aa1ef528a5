"""HTML pages in a single file that needs no network: jinja2 templates of this folder, filled with data."""

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
    """Encode an image as a data URI, which an HTML page can contain. The image file has no metadata.

    Args:
        pixels: the image, uint8 (height, width, 3).
        kind: Pillow's name of the file format, such as "png" or "webp".
        options: Pillow's options for this format.
    """
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format=kind, **options)
    return f"data:image/{kind};base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def to_json(data: object) -> Markup:
    """Write data as JSON in ASCII, for a script element of a page.

    The characters <, >, & and ' are escaped, so no text in the data can end the element.
    """
    return htmlsafe_json_dumps(data, ensure_ascii=True, separators=(",", ":"))


def fill_page(template: str, data: Mapping[str, object]) -> str:
    """Return a page filled with its data, as HTML.

    Args:
        template: file name of a jinja2 template that extends `page_shell.html`.
        data: JSON values that the script of the page reads.
    """
    return _TEMPLATES.get_template(template).render(data=to_json(data))


def _csp_hash(text: str) -> Markup:
    """Return the hash of a style or script element's text, by which a content security policy allows the element."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Markup(f"'sha256-{digest}'")


_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    keep_trailing_newline=True,
)
_TEMPLATES.filters["csp_hash"] = _csp_hash
