"""docs/audit.md and `lantern audit`: the page's lines are run as they stand, but by default on fewer sequences."""

from __future__ import annotations

import re
import shlex
import sys

import pytest
import torch
from typer.testing import CliRunner

from helpers.paths import ROOT
from lantern_audit import audit
from lantern_pipeline.cli import app

PAGE = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.S | re.M)  # language, text
COMMANDS = [text for language, text in BLOCKS if language == "" and "lantern audit" in text]
(SHOWN,) = [text for _, text in BLOCKS if text.startswith("sequences")]  # output of the first line
# (whether the line is run in examples/, the line)
LINES = [(text.startswith("cd examples"), line) for text in COMMANDS for line in text.splitlines() if line[:2] != "cd"]
# The lines that `make test` runs: the one whose output is shown, and a biased one.
FAST = (LINES[0][1], *(line for _, line in LINES if "shared_gumbel" in line))
BIASED = ("shared_gumbel", "greedy_drafts", "Typical", "lantern --k", "lantern_pp")


@pytest.fixture
def run(monkeypatch):
    """Run `lantern` in this process, which leaves Python's path and threads as they were."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    num_threads = torch.get_num_threads()

    def run(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, list(words))
        return result.exit_code, result.output

    yield run
    torch.set_num_threads(num_threads)


@pytest.mark.parametrize(
    ("is_in_examples", "line"),
    [pytest.param(*row, id=row[1], marks=[] if row[1] in FAST else pytest.mark.slow) for row in LINES],
)
def test_a_line_of_the_page_says_whether_the_sampler_is_lossless(is_in_examples, line, run, monkeypatch):
    monkeypatch.setattr(audit, "NUM_SAMPLES", 20_000)
    monkeypatch.chdir(ROOT / "examples" if is_in_examples else ROOT)
    command, *words = shlex.split(line)
    assert command == "lantern"
    code, output = run(*words)
    is_biased = any(word in line for word in BIASED)
    assert ("is not lossless" in output, code) == (is_biased, int(is_biased)), output
    assert [row[:20] for row in output.splitlines()[:4]] == [row[:20] for row in SHOWN.splitlines()[:4]]
    if line == LINES[0][1]:
        digits = r"[\d.]+"  # a token may be another one on another CPU
        assert re.sub(digits, "", output) == re.sub(digits, "", SHOWN)


def test_the_pages_sampler_in_python_is_lossless(capsys):
    (code,) = [text for language, text in BLOCKS if language == "python"]
    exec(code, {})
    assert "ancestral shows no difference" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("jakobi", "a sampler must be one of autoregressive, "),
        ("lantern --k", "got '--k'"),
        ("lantern --k=2", "needs delta"),
        ("jacobi --sampler x", "a method takes its own parameters only, got sampler for jacobi"),
        ("jacobi --num 3", "num of audit must be an integer in [500, 1e+07], got 3"),
        ("jacobi --world size=9", "a world has vocab_size, lines, columns, num_prompts, top_k, seed, got size"),
        ("nowhere:sample", "nowhere:sample must name"),
    ],
)
def test_wrong_words_are_named_in_a_sentence(words, sentence, run):
    code, output = run("audit", *words.split())
    assert code == 1 and sentence in output and len(output.splitlines()) == 1, output
