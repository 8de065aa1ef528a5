"""Tests of the published cleaning of captions: all captions of the fixture, and special cases.

Expected texts of the special cases were made by the reference with Beautiful Soup 4.15 and ftfy 6.3.1.
"""

import json

import pytest

from helpers.paths import DATA
from lantern_models.text.caption_cleaning import clean_caption


def test_every_caption_of_the_reference_is_cleaned_alike():
    pairs = json.loads((DATA / "caption_clean.json").read_text(encoding="utf-8"))
    assert len(pairs) == 68
    assert [clean_caption(pair["raw"]) for pair in pairs] == [pair["cleaned"] for pair in pairs]


@pytest.mark.parametrize(
    ("raw", "cleaned"),
    [
        ("a cat www.shop.com/cats at night", "a cat at night"),
        ("<b>bold</b> and <script>run()</script> plain", "bold and plain"),
        ("1 &lt; 2 &eacute;t&eacute; &#65; &nosuch;", "1 < 2 été a nosuch"),
        ("three &amp;amp; four", "three ; four"),
        ("an em—dash and «quotes»", 'an em-dash and "quotes"'),
        ("a 10x15 and a 4х5 print", "a and a print"),
        ("50%25 off + more", "50% off more"),
        ("wait... what . now", "wait what now"),
        ("by @nick at 1:23 ", "by at 1:23"),
        ("cafÃ©", "cafã"),
        ('"quoted"', "quoted"),
        ("", ""),
        # What only a second pass finds.
        ("see photo.png of page 12, free shipping", "see of"),
        ("-:x:-", "x"),
        ("%2541 cat", "a cat"),
        ("<![x and on", "<! x and on"),  # markup that the parser refuses is text
    ],
)
def test_quirks_are_kept(raw, cleaned):
    assert clean_caption(raw) == cleaned
