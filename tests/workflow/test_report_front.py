"""Tests of the first text of the report as Snakemake renders it: links to existing files, no docutils error."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from docutils.core import publish_parts
from jinja2 import Environment

from helpers.paths import ROOT

FILES = ("race.html", "results.html", "generality.html", "provenance.html")


@pytest.fixture
def render():
    """Render workflow.rst as `snakemake --report` does, for files and categories by name."""
    text = (ROOT / "workflow" / "report" / "workflow.rst").read_text(encoding="utf-8")

    def render(files=FILES, categories=("Figures",), target=None):
        config = {"experiment": "mine", "target": {"checkpoint": target}, "drafter": {"checkpoint": target}}
        config["data"] = {"source": "scenes", "num_train": 240}
        template = Environment(trim_blocks=True, lstrip_blocks=True).from_string(text)
        rst = template.render(
            snakemake=SimpleNamespace(config=config),
            categories=[SimpleNamespace(name=name) for name in categories],
            files=[SimpleNamespace(target=name, path=f"results/mine/{name}") for name in files],
        )
        return publish_parts(rst, writer_name="html")["html_body"]

    return render


def test_it_links_to_what_there_is(render):
    page = render()
    assert "experiment mine" in page
    assert all(f"results['results/mine/{name}']" in page for name in FILES)
    assert "app.showCategory('Figures')" in page and "Ablations" not in page
    assert "240 procedural images" in page and "system-message" not in page
    page = render(categories=("Results",))
    assert page.count("results['results/mine/results.html']") == 1  # the list of all tables opens no page again
    page = render(FILES[1:], ("Figures", "Ablations"), target="models/target.safetensors")
    assert "race.html" not in page and "watch" not in page and "app.showCategory('Ablations')" in page
    assert "models/target.safetensors" in page and "trained by this run" not in page
