"""Run by test_extending.py in a copy of the project that draws substitutions."""

import inspect
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import yaml

import lantern_pipeline
from conftest import ROOT
from figure_tables import SETTINGS, assert_legible, make_summary
from lantern_pipeline.figures.style import save_figure

PROJECT = Path(sys.argv[1])
assert Path(lantern_pipeline.__file__).is_relative_to(PROJECT)
draw_substitutions = import_module("lantern_pipeline.figures.substitutions").draw_substitutions  # in the copy alone


def check_drawing():
    """A bar for every method that counts substitutions."""
    summary = make_summary()
    summary["substitutions"] = [0.0, 0.0, float("nan"), 3.5]
    summary["substitutions_low"], summary["substitutions_high"] = summary["substitutions"] - 0.5, 4.0
    figure = draw_substitutions(summary, SETTINGS)
    assert [bar.get_width() for bar in figure.axes[0].patches] == [0, 0, 3.5]
    assert_legible(figure)
    save_figure(figure, ["figure.png", "figure.pdf"])
    assert Path("figure.png").stat().st_size > 1000


def check_plan():
    """Snakemake plans the new rule when its picture is asked for."""
    figure = "results/tiny/figures/fig_s_substitutions.png"
    configs = [PROJECT / "config.yaml", ROOT / "tests" / "workflow" / "tiny.yaml"]
    command = [sys.executable, "-m", "snakemake", "--snakefile", PROJECT / "Snakefile", "--cores", "1", "-n", figure]
    result = subprocess.run(
        [*command, "--configfile", *configs],
        env=os.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert result.returncode == 0, result.stdout
    assert re.search(r"^draw_substitutions +1$", result.stdout, re.M), result.stdout
    assert "Drawing figure (s): How often a look-alike stands in" in result.stdout, result.stdout


def check_profile():
    """The cluster profile sends it with the other figures; its function takes what the table gives."""
    groups = yaml.safe_load((PROJECT / "profiles" / "slurm" / "config.yaml").read_text())["groups"]
    assert groups["draw_substitutions"] == groups["draw_samples"]
    assert set(inspect.signature(draw_substitutions).parameters) == {"summary", "settings"}


check_drawing()
check_profile()
check_plan()
