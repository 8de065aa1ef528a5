r"""Hook of mkdocs: formulas in TeX become MathML, which browsers show without scripts and without a network.

Pages write formulas as GitHub reads them: within a line as $`TEX`$, on lines of their own in a fence of language math.
Markdown sees code between dollar signs. It therefore changes no backslash or underscore of a formula, and the code can
be found in its output.
"""

import html
import re

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

WRAPS = "display: flex; flex-wrap: wrap; place-content: center; align-items: center; gap: 0 2.5em"
SCROLLS = "max-width: 100%; overflow-x: auto; padding: 0.3em 0"
FENCE = re.compile(r"^(?P<indent> *)```math\n(?P<tex>.*?)\n *```$", re.M | re.S)
FORMULA = re.compile(r"(?P<dollars>\$\$?)<code>(?P<tex>.*?)</code>(?P=dollars)", re.S)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn fences of formulas into code between two dollar signs each."""
    return FENCE.sub(lambda fence: f"{fence['indent']}$$`{' '.join(fence['tex'].split())}`$$", markdown)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace the formulas of a page, which is HTML by now."""
    return FORMULA.sub(_to_mathml, content)


def _to_mathml(formula: re.Match[str]) -> str:
    tex = html.unescape(formula["tex"])
    if formula["dollars"] == "$":
        return convert(tex)
    # On a narrow screen the parts between wide spaces stand one below the other. A part that is too long scrolls.
    parts = "".join(f'<span style="{SCROLLS}">{convert(part, display="block")}</span>' for part in tex.split(r"\qquad"))
    return f'<span style="{WRAPS}">{parts}</span>'
