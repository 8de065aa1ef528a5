"""Tests that each notebook runs as it stands and shows what its text says, and that its page has all outputs."""

import runpy
import sys

import matplotlib.pyplot as plt
import notebook_pages
import pytest
import torch

from helpers.paths import ROOT


@pytest.fixture
def run(monkeypatch):
    """Return a function that runs a notebook as a Python script and returns its global names."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    plt.switch_backend("agg")
    yield lambda name: runpy.run_path(str(ROOT / "docs" / "notebooks" / name))
    plt.close("all")


def test_first_look_shows_an_exact_and_a_relaxed_method(run, capsys):
    names = run("first_look.py")
    images = names["images"]
    assert torch.equal(images["jacobi"].codes, images["autoregressive"].codes)
    num_substituted = int(images["lantern"].records.substitutions[0])
    assert f"{num_substituted} of 64 tokens are substitutions" in capsys.readouterr().out
    assert 0 < num_substituted == len(names["all_axes"][1].patches)
    assert len(plt.get_fignums()) == 3


@pytest.mark.slow
def test_the_acceptance_of_a_reader_is_compared_with_lantern_pp(run, capsys):
    names = run("your_own_rule.py")
    assert len(names["LENIENT"].strip().splitlines()) <= 20
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        [name, str(factor)] for name in ("Lenient", "LANTERN++") for factor in names["FACTORS"]
    ]
    for name, rows in names["on_images"].items():
        speeds = [speed for speed, _, _ in rows]
        assert 1 < speeds[0] < speeds[-1], name
        assert names["in_world"][name][0].value < names["in_world"][name][-1].value, name
    assert len(plt.get_fignums()) == 1


@pytest.mark.slow
def test_the_audit_finds_the_wrong_sampler(run, capsys):
    names = run("is_my_sampler_lossless.py")
    assert {name: audit.has_difference for name, audit in names["audits"].items()} == {"right": False, "wrong": True}
    output = capsys.readouterr().out
    for sentence in ("right shows no", "wrong is not lossless", "jacobi shows no", "lantern is not lossless"):
        assert f"\n{sentence}" in f"\n{output}"
    assert len(plt.get_fignums()) == 2


def test_the_page_of_a_notebook_has_its_texts_code_output_and_pictures(tmp_path):
    notebook = tmp_path / "small.py"
    notebook.write_text(
        "# %% [markdown]\n# # A title\n\n# %%\nimport matplotlib.pyplot as plt\n\nplt.plot([1, 2])\nprint(6 * 7)\n"
    )
    text, pictures = notebook_pages.run_notebook(notebook)
    code = "import matplotlib.pyplot as plt\n\nplt.plot([1, 2])\nprint(6 * 7)"
    picture = "![Figure of the code above](small_1.png)"
    assert text == f"# A title\n\n```python\n{code}\n```\n\n```\n42\n```\n\n{picture}"
    assert list(pictures) == ["small_1.png"] and pictures["small_1.png"].startswith(b"\x89PNG")
    assert not plt.get_fignums()


def test_the_site_lists_every_notebook():
    nav = (ROOT / "mkdocs.yml").read_text()
    library = (ROOT / "docs" / "library.md").read_text()
    for notebook in notebook_pages.NOTEBOOKS:
        assert f": {notebook.stem}.md\n" in nav and f"(notebooks/{notebook.name})" in library
