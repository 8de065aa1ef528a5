"""Predictions by hand: seconds and speed-ups from published step times and relative step costs."""

import re

import pytest
from typer.testing import CliRunner

from helpers.paths import ROOT
from lantern.methods import PRESETS
from lantern_pipeline.cli import app
from lantern_pipeline.tables.predict import predict, published_tokens, step_ms, uses_draft_model


def run(*arguments):
    result = CliRunner().invoke(app, ["predict", *arguments])
    return result.exit_code, " ".join(result.output.split())


def test_a_step_is_its_layers_launches_or_its_weights_way():
    assert step_ms("llamagen_stage1", "h100", "eager") == pytest.approx(36 * 0.9)  # 32.4 ms, as PAR published
    assert step_ms("janus-pro-7b", "a100", "graph") == pytest.approx(
        12.4 / (0.68 * 2.04), rel=0.01
    )  # GB over GB per ms
    assert step_ms("llamagen_stage2", "h200", "graph") == pytest.approx(1.55 / (0.68 * 4.8), rel=0.01)


def test_a_method_without_and_with_a_draft_model():
    eager, graph = predict("llamagen_stage1", "h100", "jacobi", 2.5)
    assert eager.speedup == pytest.approx((2.5 / 1.53, 2.5 / 0.97)) and graph.speedup == eager.speedup
    assert eager.seconds == pytest.approx((8.2944 * 0.97 / 2.5, 8.2944 * 1.53 / 2.5))  # 256 steps of 32.4 ms
    eager, graph = predict("llamagen_stage1", "h100", "eagle1", 2.0)
    assert eager.speedup == pytest.approx((2.0 / 1.45, 2.0 / 1.19))
    assert graph.speedup == pytest.approx((2.0 / 1.82, 2.0 / 1.30))
    alone, _ = predict("llamagen_stage1", "h100", "autoregressive", 1.0)
    assert alone.speedup == (1.0, 1.0) and alone.seconds == pytest.approx((8.2944, 8.2944))


@pytest.mark.parametrize(
    ("model", "tokens", "eager_ms", "gigabytes"),
    [
        ("llamagen_stage1", 256, 36 * 0.9, 1.555848),
        ("janus-pro-7b", 576, 30 * 1.33, 12.445041),
        ("glm-image", 1280, 40 * 0.96, 16.584942),
    ],
)
def test_an_image_takes_a_step_for_each_of_its_tokens(model, tokens, eager_ms, gigabytes):
    eager, graph = predict(model, "h200", "autoregressive", 1.0)
    assert eager.seconds == pytest.approx([tokens * eager_ms / 1000] * 2)
    assert graph.seconds == pytest.approx([tokens * gigabytes / (0.68 * 4.8) / 1000] * 2)


def test_presets_with_a_draft_model_and_those_without():
    with_draft_model = {name for name in PRESETS if uses_draft_model(name)}
    assert {"eagle1", "lantern", "coupled", "hybrid", "cool"} <= with_draft_model
    assert not {"autoregressive", "jacobi", "sjd", "zipar"} & with_draft_model


def test_tokens_per_forward_are_the_embedded_data_sets_unless_given():
    assert published_tokens(ROOT / "docs" / "results.csv", "jacobi") == pytest.approx(2.54, abs=0.2)
    code, output = run("--model", "glm-image", "--gpu", "a100")
    assert code == 0 and output.startswith("predicted, not measured") and "docs/results.csv" in output
    assert "with a draft model, graph" in output and "without a draft model, eager" in output
    code, output = run("--method", "jacobi", "--tokens-per-forward", "2.5")
    assert code == 0 and "jacobi eager 2.50 3.22 to 5.08 1.63 to 2.58" in output and "jacobi, 2.50: given" in output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--gpu", "h900"], r"--gpu must be one of a100, h100, h200, got 'h900'"),
        (
            ["--model", "dalle"],
            r"--model must be one of llamagen_stage1, llamagen_stage2, janus-pro-7b, glm-image, got 'dalle'",
        ),
        (["--method", "magic", "--tokens-per-forward", "2"], r"--method must be one of autoregressive, eagle1, .* got"),
        (["--method", "zipar"], r"zipar has no published tokens per forward, .*jacobi.* give --tokens-per-forward"),
        (["--method", "nope"], r"--method must be one of autoregressive, eagle1, .*zipar, got 'nope'"),
        *(
            (
                ["--tokens-per-forward", tokens],
                f"--tokens-per-forward must be a finite number of at least 1, got {tokens}",
            )
            for tokens in ("0", "0.99", "nan", "inf")
        ),
    ],
)
def test_what_is_unknown_is_one_sentence_with_what_is_known(arguments, sentence):
    code, output = run(*arguments)
    assert code == 1 and re.search(sentence, output), output


def test_methods_that_are_offered_are_accepted():
    _, output = run("--method", "zipar")
    offered = re.search(r"forward, (.*) have", output)[1].split(", ")
    assert "jacobi" in offered and [name for name in offered if run("--method", name)[0] != 0] == []


def test_of_several_rows_of_a_method_the_first_counts(tmp_path):
    (tmp_path / "results.csv").write_text("method,mean_accepted_length\njacobi,2.5\njacobi,3.5\n")
    assert published_tokens(tmp_path / "results.csv", "jacobi") == 2.5
