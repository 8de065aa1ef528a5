"""The report's first screen: what was run, the three numbers that matter, the same images drawn three ways."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from lantern_pipeline.pages.html_page import data_uri
from lantern_pipeline.tables.claims import MIN_TIMED, describe_run, num_timed
from lantern_pipeline.tables.markdown import with_interval

SIZE = 144  # pixels a side to which larger images are shrunk
# Within Snakemake's report: its own styles of text stay out (`not-prose`), and ours within `.front`.
PAGE = """<div class="front not-prose">
<style>
.front {{ font-family: sans-serif; color: #1f2933; line-height: 1.35 }}
.front p {{ margin: 0.2rem 0 0.8rem }}
.front .tiles {{ display: flex; flex-wrap: wrap; gap: 0.8rem; margin-bottom: 0.8rem }}
.front .tile {{ flex: 1 1 15rem; border: 1px solid #c3ccd5; border-top: 4px solid #0072b2; padding: 0.5rem 0.8rem }}
.front .tile:nth-child(n+2) {{ border-top-color: #d55e00 }}
.front .tile h2 {{ font-size: 0.95rem; font-weight: bold; margin: 0 }}
.front .tile strong {{ font-size: 2rem }}
.front .tile p {{ margin: 0; font-size: 0.9rem }}
.front table {{ border-collapse: collapse; width: 100%; table-layout: fixed; font-size: 0.8rem }}
.front th {{ font-weight: normal; text-align: left; vertical-align: bottom; padding: 0.1rem 0.4rem 0.2rem 0 }}
.front th[scope=row] {{ vertical-align: middle; font-size: 0.9rem }}
.front tr:first-child > td {{ width: 9rem }}
.front td {{ padding: 1px }}
.front img {{ display: block; width: 100%; margin: 0; image-rendering: pixelated }}
.front .cut {{ display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 4; overflow: hidden }}
@media (max-width: 640px) {{
.front p, .front .tile p {{ font-size: 0.8rem; line-height: 1.25 }}
.front .tiles {{ gap: 0.3rem }}
.front .tile {{ padding: 0.1rem 0.6rem }}
.front .tile strong {{ font-size: 1.4rem }}
.front table, .front th[scope=row] {{ font-size: 0.7rem }}
.front tr:first-child > td {{ width: 5.5rem }}
.front tr > :nth-child(n+5) {{ display: none }}
}}
</style>
<p>{setting}</p>
<div class="tiles">
{tiles}
</div>
<table>
{rows}
</table>
</div>
"""
TILE = """<div class="tile"><h2>{title}</h2><strong>{number}</strong> {interval}<p>{text}</p></div>"""


def describe_front(claims: Mapping[str, Any]) -> dict[str, Any]:
    """What the first screen says, as texts: `setting`, `tiles`, and `methods`, the rows of images.

    `claims`: of `lantern_pipeline.tables.claims.find_claims`.
    """
    setting = claims["setting"]
    baseline, exact, relaxed = (claims.get(name) for name in ("baseline", "exact", "relaxed"))
    is_equal = exact is not None and exact["tokens_equal_autoregressive"] == 1
    kept = "its images are autoregressive decoding's, token for token" if is_equal else "in the target's distribution"
    tiles = [_speed_tile("Exact", exact, kept), _speed_tile("Relaxed", relaxed, "look-alike tokens allowed")]
    return {
        "setting": f"{setting['num_methods']} ways to draw the same images. {describe_run(setting)}",
        "tiles": tiles if relaxed is None else [*tiles, _price_tile(relaxed, baseline)],
        "methods": {
            row["method_id"]: f"{row['label']}: {row['mean_accepted_length']:.2f} tokens per forward"
            for row in (baseline, exact, relaxed)
            if row is not None
        },
    }


def _speed_tile(title: str, row: Mapping[str, Any] | None, kept: str) -> dict[str, str]:
    """Speed-up, or tokens per forward where nothing was timed."""
    if row is None:
        return {"title": title, "number": "–", "interval": "", "text": "No such method was run and kept its accuracy."}
    if row["speedup"] is None:
        number, _, interval = with_interval(row, "mean_accepted_length").partition(" ")
        text = f"{row['label']}; {kept}. Nothing was timed."
        return {"title": f"{title}: tokens per forward", "number": number, "interval": interval, "text": text}
    number, _, interval = with_interval(row, "speedup").partition(" ")
    few = f" Only {num_timed(row):.0f} prompts timed: too few to tell." if num_timed(row) < MIN_TIMED else ""
    text = f"{row['label']}, {row['mean_accepted_length']:.2f} tokens per forward of the target; {kept}.{few}"
    return {"title": f"{title}: speed-up", "number": f"{number} ×", "interval": interval, "text": text}


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


def render_front(front: Mapping[str, Any], pictures: Mapping[str, np.ndarray], texts: Sequence[str]) -> str:
    """Writes the first screen as a piece of HTML that needs nothing else.

    `front`: of `describe_front`; `pictures`: method_id -> (prompts, S, S, 3) uint8; `texts`: the prompts'.
    """
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
    setting = html.escape(front["setting"])
    return PAGE.format(setting=setting, tiles="\n".join(tiles), rows="\n".join(lines))


def _shrink(pixels: np.ndarray) -> np.ndarray:
    """A picture (S, S, 3) uint8 of at most SIZE a side."""
    picture = Image.fromarray(pixels)
    picture.thumbnail((SIZE, SIZE))
    return np.asarray(picture)
