"""docs/audit.md and `lantern audit`: the page's lines are run as they stand."""

from __future__ import annotations

import re
import shlex
import sys

import pytest
from typer.testing import CliRunner

from helpers.paths import ROOT
from lantern_pipeline.cli import app

PAGE = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
BLOCKS = [block for block in re.findall(r"```\n(.*?)```", PAGE, re.S) if "lantern audit" in block]
LINES = [(block.startswith("cd examples"), line) for block in BLOCKS for line in block.splitlines() if line[:2] != "cd"]
BIASED = ("shared_gumbel", "greedy_drafts", "Typical", "lantern --k", "lantern_pp")


@pytest.fixture
def run(monkeypatch):
    """Run `lantern` in this process, which leaves Python's path as it was."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, list(words))
        return result.exit_code, result.output

    return run


@pytest.mark.parametrize(("is_in_examples", "line"), LINES, ids=[line for _, line in LINES])
def test_a_line_of_the_page_says_whether_the_sampler_is_lossless(is_in_examples, line, run, monkeypatch):
    monkeypatch.chdir(ROOT / "examples" if is_in_examples else ROOT)
    command, *words = shlex.split(line)
    assert command == "lantern"
    code, output = run(*words)
    is_biased = any(word in line for word in BIASED)
    assert ("is not lossless" in output, code) == (is_biased, int(is_biased)), output
    assert [row.split("  ")[0] for row in output.splitlines()[:4]] == [
        "sequences",
        "total variation",
        "chi-square test",
        "smallest bias seen",
    ]


def test_the_output_that_the_page_shows_is_that_of_its_first_line(run):
    (shown,) = [block for block in re.findall(r"```\n(.*?)```", PAGE, re.S) if block.startswith("sequences")]
    found = run(*shlex.split(LINES[0][1])[1:])[1]
    numbers = r"\d[\d.]*"  # a token may fall the other way on another CPU
    assert re.sub(numbers, "", found) == re.sub(numbers, "", shown)


def test_the_pages_sampler_in_python_is_lossless(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    exec(code, {})
    assert "ancestral shows no difference" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("jakobi", "a sampler must be one of autoregressive, "),
        ("lantern --k", "parts of a method must be options with a value, as in --k 4, got '--k'; add it"),
        ("lantern k=4", "parts of a method must be options with a value, as in --k 4, got 'k=4'; add it"),
        ("lantern --k=2", "method lantern with drafts top and acceptance additive needs delta, >= 0"),
        ("jacobi --sampler x", "takes no sampler, got x; it takes no parameters"),
        ("jacobi --num 3", "num of audit must be an integer in [500, 1e+07], got 3"),
        ("jacobi --world size=9", "a world has vocab_size, lines, columns, num_prompts, top_k, seed, got size"),
        ("jacobi --world vocab_size=9", "vocab_size of a world must be an integer in [3, 8], got 9"),
        ("nowhere:sample", "nowhere:sample must name a function or a class as module:name, of a file in this folder"),
    ],
)
def test_wrong_words_are_named_in_a_sentence(words, sentence, run):
    code, output = run("audit", *words.split())
    assert code == 1 and sentence in output and len(output.splitlines()) == 1, output
