"""Tests of the base template of pages: no network, no foreign script, and texts stay texts."""

import base64
import hashlib
import re

import pytest

from helpers.pages_data import SCRIPT, build_race, build_study, data_of


@pytest.fixture(params=["race", "study"])
def html(request):
    return build_race() if request.param == "race" else build_study()[0]


def test_a_page_names_no_address_and_its_texts_stay_text(html):
    data = data_of(html)
    texts = [entry.get("text", entry.get("caption")) for entry in data.get("prompts", data.get("trials"))]
    assert SCRIPT in texts and "<script>document" not in html and html.count("</script>") == 2
    assert "a {{ data }} or {% if %}" in texts or data["question"] == "is {{ data }} or {# this #} nicer?"
    text = re.sub(r"data:image/\w+;base64,[A-Za-z0-9+/=]+|'sha256-[^']*'", "data:", html)
    assert not re.search(r"https?:|\bfetch\(|XMLHttpRequest|WebSocket|sendBeacon|import\(|@import|url\(", text)
    assert not re.search(r"""\b(src|href)\s*=\s*["'](?!data:)""", text)


def test_the_policy_allows_data_images_and_exactly_the_own_script_and_styles(html):
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1]
    rules = dict(part.split(" ", 1) for part in policy.split("; "))
    assert rules["default-src"] == "'none'" and rules["img-src"] == "data:"
    for element in ("script", "style"):
        (text,) = re.findall(rf"<{element}>(.*?)</{element}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[f"{element}-src"] == f"'sha256-{digest}'"
