"""Tests of .ci/site.py, which makes pages of README.md and CHANGELOG.md, and of what they cite."""

import re
import runpy
from types import SimpleNamespace

import pytest
import yaml

from helpers.paths import ROOT

pytest.importorskip("mkdocs", reason="needs mkdocs: install the dev extra")

CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
README = (ROOT / "README.md").read_text()


@pytest.fixture
def site():
    return SimpleNamespace(**runpy.run_path(str(ROOT / ".ci" / "site.py")))


def pages_of(site):
    """Return the pages that the hook adds: file name -> text."""
    from mkdocs.structure.files import Files

    plugins = SimpleNamespace(_current_plugin=None)
    files = Files([])
    site.on_files(files, SimpleNamespace(site_dir="site", use_directory_urls=True, plugins=plugins))
    return {file.src_uri: file.content_string for file in files}


def test_the_readme_is_a_page_and_its_section_about_citing_another(site):
    pages = pages_of(site)
    assert pages.keys() == {"overview.md", "changelog.md", "cite.md"}
    assert "](docs/" not in pages["overview.md"] and "](cite.md)" in pages["overview.md"]
    assert "```bibtex" not in pages["overview.md"] and "## Results" in pages["overview.md"]
    assert pages["cite.md"].startswith("# Cite\n") and pages["cite.md"].count("\n@") == 3


def test_every_page_is_in_the_navigation(site):
    nav = re.findall(r": (\w+\.md)\n", (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2])
    written = {path.name for path in (ROOT / "docs").glob("*.md")} | pages_of(site).keys()
    assert set(nav) == written | {"presets.md"} | set(site.NOTEBOOKS.values()) and len(nav) == len(set(nav))


def test_the_readme_cites_the_papers_and_the_version_of_the_file_for_citations():
    assert README.count("\n@") == 3
    for reference in CITATION["references"][:2]:
        eprint = f"eprint={{{reference['url'].rpartition('/')[2]}}}"
        (entry,) = [entry for entry in README.split("\n@") if eprint in entry]
        assert f"title={{{reference['title']}}}" in entry
        names = [f"{person['family-names']}, {person['given-names']}" for person in reference["authors"]]
        assert f"author={{{' and '.join(names)}}}" in " ".join(entry.split())
        assert f"year={{{reference['year']}}}" in entry
    assert f"title={{{CITATION['title']}}}" in README and f"version={{{CITATION['version']}}}" in README
    assert f"author={{{{{CITATION['authors'][0]['name']}}}}}" in README
    assert f"year={{{CITATION['date-released'].year}}}" in README
