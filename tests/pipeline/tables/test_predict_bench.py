"""Tests of predictions from a bench: its step costs replace those of a published GPU."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from lantern.methods import make_method
from lantern.tree_shapes import num_drafts
from lantern_pipeline.cli import app
from lantern_pipeline.tables.predict_bench import cost_of, measured_tokens, read_bench


def row(preset, cost, ends=(None, None), tokens=None, **parts):
    spec = make_method(preset, **parts)
    found = {"method": spec.to_dict(), "num_drafts": num_drafts(spec.tree_shape), "forward_s": 0.01 * cost}
    found |= {"relative_step_cost": cost, "relative_step_cost_low": ends[0], "relative_step_cost_high": ends[1]}
    return {**found, "tokens_per_forward": tokens} if tokens else found


REPORT = {"model": "glm-image", "processor": "a GPU", "num_tokens": 1280, "random_weights": True}
REPORT["rows"] = [
    row("autoregressive", 1.0),
    row("jacobi", 1.2, (1.1, 1.3)),
    row("jacobi", 1.5, (1.4, 1.6), tree="chain15"),
    row("eagle1", 2.0, tree="chain3"),
]


@pytest.fixture
def bench(tmp_path):
    (tmp_path / "bench.json").write_text(json.dumps(REPORT))
    return tmp_path


def run(*arguments):
    result = CliRunner().invoke(app, ["predict", *map(str, arguments)])
    return result.exit_code, " ".join(result.output.split())


@pytest.mark.parametrize(
    ("spec", "low", "high", "source"),
    [
        (make_method("jacobi"), 1.1, 1.3, "measured"),
        (make_method("eagle1", tree="chain3"), 2.0, 2.0, "measured"),  # one prompt has no interval
        (make_method("jacobi", tree="chain12"), 1.1, 1.6, "without a draft model with 9 and 15 drafts"),
        (make_method("jacobi", tree="chain3"), 1.0, 1.3, "without a draft model with 0 and 9 drafts"),
        (make_method("sjd", tree="chain15"), 1.4, 1.6, "without a draft model with 15 drafts"),
        (make_method("coupled", tree="chain2"), 1.0, 2.0, "with a draft model with 0 and 3 drafts"),
    ],
)
def test_a_cost_is_measured_or_between_the_costs_of_smaller_and_larger_trees(spec, low, high, source):
    found = cost_of(REPORT, spec)
    assert (found.low, found.high) == (low, high) and found.source.endswith(source)


def test_a_speed_up_is_tokens_over_the_measured_cost(bench):
    code, output = run("--bench", bench / "bench.json", "--method", "jacobi", "--tokens-per-forward", 2.6)
    assert code == 0, output
    assert output.startswith("predicted from steps measured on a GPU: glm-image, 1280 tokens per image")
    # 1280 steps of 10 ms
    assert "autoregressive 1.00 1.00 12.80 1.00" in output
    assert "jacobi 2.60 1.10 to 1.30 5.42 to 6.40 2.00 to 2.36" in output
    assert "tokens per forward of jacobi, 2.60: given" in output


def test_without_options_the_published_tokens_of_jacobi_count(bench):
    code, output = run("--bench", bench)
    assert code == 0 and "eagle1" not in output and "docs/results.csv" in output, output


def test_a_report_with_the_former_name_of_the_tokens_is_read(tmp_path):
    report = {**REPORT, "random_weights": False, "rows": [row("autoregressive", 1.0, tokens=1.0)]}
    text = json.dumps(report).replace("tokens_per_forward", "mean_accepted_length")
    (tmp_path / "bench.json").write_text(text)
    assert "mean_accepted" in text and measured_tokens(read_bench(tmp_path), make_method("autoregressive")) == 1.0


def test_tokens_of_trained_weights_are_those_of_the_bench():
    rows = [row("autoregressive", 1.0, tokens=1.0), row("jacobi", 1.2, tokens=2.5)]
    report = {**REPORT, "random_weights": False, "rows": rows}
    assert measured_tokens(report, make_method("jacobi", method_id="mine")) == 2.5
    assert measured_tokens(report, make_method("jacobi", tree="chain15")) is None
    assert measured_tokens({**report, "random_weights": True}, make_method("jacobi")) is None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--gpu", "a100"], "--bench states the model and the GPU, got --model or --gpu too; leave them out"),
        (["--method", "jacobi tree=chain31"], "jacobi tree=chain31: give --tokens-per-forward"),
        (["--method", "jacobi", "--tokens-per-forward", "0.5"], "--tokens-per-forward must be a finite number"),
        (
            ["--method", "eagle1", "--tokens-per-forward", "2"],
            "eagle1 has 57 drafts, and methods with a draft model in",
        ),
        (
            ["--method", "jacobi tree=chain31", "--tokens-per-forward", "2"],
            "has 31 drafts, and methods without a draft",
        ),
    ],
)
def test_a_wrong_option_is_one_sentence(arguments, sentence, bench):
    code, output = run("--bench", bench, *arguments)
    assert code == 1 and sentence in output, output


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        '{"rows": []}',
        json.dumps({**REPORT, "rows": [{"method": {}}]}),
        json.dumps({**REPORT, "rows": REPORT["rows"][1:]}),
        json.dumps({name: value for name, value in REPORT.items() if name != "num_tokens"}),
    ],
)
def test_another_file_is_refused(text, tmp_path):
    (tmp_path / "bench.json").write_text(text)
    with pytest.raises(
        ValueError,
        match=r"bench.json must be a file of .*; measure again by `lantern bench MODEL",
    ):
        read_bench(tmp_path)
    code, output = run("--bench", tmp_path / "absent.json")
    assert code == 1 and "absent.json" in output
