"""Tests of predictions by hand: seconds and speed-ups from published step times and relative step costs."""

import re
from functools import partial

import kernels
import pytest
import torch
from typer.testing import CliRunner

from helpers.paths import ROOT
from lantern.methods import make_method
from lantern.registry import PRESETS
from lantern_pipeline.cli import app
from lantern_pipeline.tables.predict import (
    KERNELS,
    predict,
    published_ms,
    published_tokens,
    step_ms,
    uses_draft_model,
    weights_ms,
)


def run(*arguments):
    result = CliRunner().invoke(app, ["predict", *arguments])
    return result.exit_code, " ".join(result.output.split())


def test_a_step_is_its_launches_or_its_kernels_and_its_weights_way():
    graph, eager = (step_ms("llamagen_stage1", "h100", stepping) for stepping in ("graph", "eager"))
    weights = 1.555848 / (0.68 * 3.35)  # GB over GB per ms
    assert graph == pytest.approx([weights + 0.512 * us for us in (1.6, 2.1, 2.7)])
    assert eager == pytest.approx([0.512 * us for us in (6.8, 8.2, 9.6)])
    assert 2 < eager.likely / graph.likely < 3
    slow, fast = (step_ms("janus-pro-7b", gpu, "eager") for gpu in ("a100", "h200"))
    assert fast.low == pytest.approx(1.263 * 6.8)  # a faster card launches no faster
    assert slow.low == pytest.approx(1.263 * 1.6 + 12.445041 / (0.68 * 2.04))  # the weights take longer than launches


def test_kernels_are_those_that_a_step_launches():
    """If this fails, write the new number into `KERNELS` and docs/gpu.md."""
    spec = make_method("autoregressive")
    found = kernels.count_kernels(partial(kernels.random_models, kernels.XL, torch.bfloat16), spec, kernels.SAMPLING)
    assert KERNELS["llamagen_stage1"] == KERNELS["llamagen_stage2"] == found.total()


def test_a_method_without_and_with_a_draft_model():
    steps = {stepping: step_ms("llamagen_stage1", "h100", stepping) for stepping in ("eager", "graph")}
    eager, graph = predict("llamagen_stage1", "h100", "jacobi", 2.5)
    assert eager.speedup == pytest.approx((2.5 / 1.53, 2.5 / 0.97))
    assert graph.speedup == pytest.approx((2.5 / 1.42, 2.5 / 1.11))
    assert eager.seconds == pytest.approx(
        (0.256 * steps["eager"].low * 0.97 / 2.5, 0.256 * steps["eager"].high * 1.53 / 2.5)
    )
    eager, graph = predict("llamagen_stage1", "h100", "eagle1", 2.0)
    assert eager.speedup == pytest.approx((2.0 / 1.45, 2.0 / 1.19))
    assert graph.speedup == pytest.approx((2.0 / 2.34, 2.0 / 1.37))
    _, alone = predict("llamagen_stage1", "h100", "autoregressive", 1.0)
    assert alone.speedup == (1.0, 1.0)
    assert alone.seconds == pytest.approx((0.256 * steps["graph"].low, 0.256 * steps["graph"].high))


@pytest.mark.parametrize(
    ("model", "tokens", "published", "gigabytes"),
    [
        ("llamagen_stage1", 256, 36 * 0.9, 1.555848),  # 32.4 ms, as PAR published
        ("janus-pro-7b", 576, 30 * 1.33, 12.445041),
        ("glm-image", 1280, 40 * 0.96, 16.584942),
    ],
)
def test_an_image_takes_a_step_for_each_of_its_tokens(model, tokens, published, gigabytes):
    assert published_ms(model) == pytest.approx(published)
    assert weights_ms(model, "h200") == pytest.approx(gigabytes / (0.68 * 4.8))
    for row in predict(model, "h200", "autoregressive", 1.0):
        step = step_ms(model, "h200", row.stepping)
        assert row.seconds == pytest.approx((tokens * step.low / 1000, tokens * step.high / 1000))


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
    assert code == 0 and "jacobi eager 2.50 0.35 to 0.77 1.63 to 2.58" in output and "jacobi, 2.50: given" in output
    assert (
        "512 kernels" in output and "all are estimates" in output and "other code, for comparison, 32.40 ms" in output
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--gpu", "h900"], r"--gpu must be one of a100, h100, h200, got 'h900'"),
        (
            ["--model", "dalle"],
            r"--model must be one of llamagen_stage1, llamagen_stage2, janus-pro-7b, glm-image, got 'dalle'",
        ),
        (["--method", "zipar"], r"zipar has no published tokens per forward, .*jacobi.* give --tokens-per-forward"),
        (["--method", "nope"], r"--method must be one of autoregressive, eagle1, .*ssd, got 'nope'"),
        *(
            (
                ["--tokens-per-forward", tokens],
                f"--tokens-per-forward must be a finite number of at least 1, got {tokens}",
            )
            for tokens in ("0.99", "nan", "inf")
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
    (tmp_path / "results.csv").write_text("method,tokens_per_forward\njacobi,2.5\njacobi,3.5\n")
    assert published_tokens(tmp_path / "results.csv", "jacobi") == 2.5
