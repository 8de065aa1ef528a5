"""The report's first screen: what was run, the three numbers that matter, the same images drawn three ways."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from PIL import Image

from lantern_pipeline.pages.html_page import data_uri
from lantern_pipeline.tables.claims import MIN_TIMED, describe_run, num_timed
from lantern_pipeline.tables.markdown import with_interval

SIZE = 144  # pixels a side to which larger images are shrunk
# Within Snakemake's report: its own styles of text stay out (`not-prose`), and ours within `.front`.
TEMPLATE = Path(__file__).with_suffix(".html")
TILE = """<div class="tile"><h2>{title}</h2><strong>{number}</strong> {interval}<p>{text}</p></div>"""


class Front(TypedDict):
    """The texts of the first screen; `methods` are the rows of images."""

    setting: str
    tiles: list[dict[str, str]]
    methods: dict[str, str]


def describe_front(claims: Mapping[str, Any]) -> Front:
    """What the first screen says of `find_claims`, as texts: `setting`, `tiles`, and `methods`, the rows of images."""
    setting = claims["setting"]
    baseline, exact, relaxed = (claims.get(name) for name in ("baseline", "exact", "relaxed"))
    is_equal = exact is not None and exact["tokens_equal_autoregressive"] == 1
    kept = "its images are autoregressive decoding's, token for token" if is_equal else "in the target's distribution"
    tiles = [_length_tile("Exact", exact, kept), _length_tile("Relaxed", relaxed, "similar tokens are allowed")]
    return {
        "setting": f"{setting['num_methods']} methods generate the same images. {describe_run(setting)}",
        "tiles": tiles if relaxed is None or baseline is None else [*tiles, _price_tile(relaxed, baseline)],
        "methods": {
            row["method_id"]: f"{row['label']}: {row['mean_accepted_length']:.2f} tokens per forward"
            for row in (baseline, exact, relaxed)
            if row is not None
        },
    }


def _length_tile(title: str, row: Mapping[str, Any] | None, kept: str) -> dict[str, str]:
    """Describe a method's tokens per forward, and its speed-up on the machine of the run if it was timed."""
    if row is None:
        return {"title": title, "number": "–", "interval": "", "text": "No such method was run and kept its accuracy."}
    number, _, interval = with_interval(row, "mean_accepted_length").partition(" ")
    speed = "Nothing was timed."
    if row["speedup"] is not None:
        speed = f"Speed-up on this machine: {with_interval(row, 'speedup')}."
        if num_timed(row) < MIN_TIMED:
            speed += f" Only {num_timed(row):.0f} prompts timed: too few to tell."
    text = f"{row['label']}; {kept}. {speed}"
    return {"title": f"{title}: tokens per forward", "number": number, "interval": interval, "text": text}


def _price_tile(row: Mapping[str, Any], baseline: Mapping[str, Any]) -> dict[str, str]:
    """What the relaxed method costs: its tokens' distance from the target's, likelihood, prompt accuracy."""
    name = "substitution_rate" if row["tv_mean"] is None else "tv_mean"
    bound = "≤ " if name == "substitution_rate" and row[name] is not None else ""
    number, _, interval = with_interval(row, name).partition(" ")
    text = (
        "total variation of its tokens from the target's (0: equal, 1: disjoint). NLL "
        f"{baseline['nll']:.2f} → {with_interval(row, 'nll')} nats per token"
    )
    if row["prompt_accuracy_change"] is not None:
        text += f"; prompt accuracy {with_interval(row, 'prompt_accuracy_change', '+.1f', 100)} points"
    return {"title": "Relaxed: its price", "number": bound + number, "interval": interval, "text": f"{text}."}


def render_front(front: Front, pictures: Mapping[str, np.ndarray], texts: Sequence[str]) -> str:
    """Writes what `describe_front` says, and pictures, method_id -> (prompts, S, S, 3) uint8, as a piece of HTML."""
    texts = [html.escape(text) for text in texts]
    heads = "".join(f'<th scope="col"><span class="cut" title="{text}">{text}</span></th>' for text in texts)
    lines = [f"<tr><td></td>{heads}</tr>"]
    for method_id, name in front["methods"].items():
        cells = "".join(
            f'<td><img src="{data_uri(_shrink(pixels))}" alt="{text}"></td>'
            for pixels, text in zip(pictures[method_id], texts, strict=True)
        )
        lines.append(f'<tr><th scope="row">{html.escape(name)}</th>{cells}</tr>')
    tiles = [TILE.format_map({key: html.escape(text) for key, text in tile.items()}) for tile in front["tiles"]]
    parts = {"setting": html.escape(front["setting"]), "tiles": "\n".join(tiles), "rows": "\n".join(lines)}
    return re.sub(r"\[\[(\w+)\]\]", lambda found: parts[found[1]], TEMPLATE.read_text(encoding="utf-8"))


def _shrink(pixels: np.ndarray) -> np.ndarray:
    """A picture (S, S, 3) uint8 of at most SIZE a side."""
    picture = Image.fromarray(pixels)
    picture.thumbnail((SIZE, SIZE))
    return np.asarray(picture)
