"""Tests of the formulas in the pages: GitHub and the site show each of them."""

import re

import formulas
import pytest

from helpers.paths import ROOT

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def rendered(markdown):
    """What the hook makes of a page, with code as Markdown writes it."""
    text = formulas.on_page_markdown(markdown, None, None, None)
    code = re.sub(
        r"`([^`\n]+)`", lambda code: f"<code>{code[1].replace('&', '&amp;').replace('<', '&lt;')}</code>", text
    )
    return formulas.on_page_content(code, None, None, None)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_formula_becomes_mathml(path):
    """An unknown command would stay as text, and GitHub shows no formula that a line end splits."""
    text = path.read_text()
    found = text.count("```math\n") + text.count("\\qquad") + len(re.findall(r"\$`[^`\n]*`\$", text))
    page = rendered(text)
    assert page.count("<math") == found and text.count("`$") == text.count("$`")
    assert not [part for part in re.findall(r"<math.*?</math>", page, re.S) if "\\" in part or "merror" in part]


def test_a_formula_has_its_own_place_or_is_a_part_of_the_line():
    page = rendered("A draft $`x_1 < y`$:\n```math\n\\frac{a}{b}\n\\le c, \\qquad d\n```\nand `$`.\n")
    assert page.startswith("A draft <math") and 'display="inline"' in page
    assert page.count('display="block"') == 2 and "<mfrac>" in page
    assert "&#x0003C;" in page and page.endswith("and <code>$</code>.\n")
