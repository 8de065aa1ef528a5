"""The table of metrics: what it says of each, and that it can be read without torch and pandas."""

import subprocess
import sys

import pytest

from lantern_pipeline.metrics.registry import DECODING, HIGHER, IMAGES, LOWER, METRICS, NEITHER, SETS, metrics_over

ALL_OFF = {"fidelity": None, "clip": None, "prompt_accuracy": False, "hps": False}


def test_every_metric_stands_once_with_a_known_kind_and_direction():
    assert len({metric.column for metric in METRICS}) == len({metric.per_image for metric in METRICS}) == len(METRICS)
    assert {metric.over for metric in METRICS} == {IMAGES, SETS, DECODING}
    assert {metric.better for metric in METRICS} == {HIGHER, LOWER, NEITHER}
    assert all(("%" in metric.title) <= metric.is_share for metric in METRICS)


@pytest.mark.parametrize(
    "choice, columns",
    [
        ({}, ["nll", "pixel_mse"]),
        ({"clip": "own"}, ["nll", "clip_score", "pixel_mse"]),
        ({"prompt_accuracy": True}, ["nll", "prompt_accuracy", "all_correct", "pixel_mse"]),
        ({"fidelity": "inception", "hps": True}, ["nll", "hps", "pixel_mse"]),
        ({"fidelity": "attribute_classifier"}, ["nll", "pixel_mse", "feature_distance"]),
    ],
    ids=str,
)
def test_a_config_chooses_what_is_measured_over_images(choice, columns):
    assert [metric.column for metric in metrics_over(IMAGES, {**ALL_OFF, **choice})] == columns


def test_a_config_chooses_what_is_measured_over_sets():
    assert metrics_over(SETS, ALL_OFF) == ()
    found = metrics_over(SETS, {**ALL_OFF, "fidelity": "inception"})
    assert [metric.column for metric in found] == ["fid", "kid", "precision", "recall"]


def test_the_table_is_read_without_torch_and_pandas():
    line = "import sys, lantern_pipeline.metrics.registry; print(bool({'torch', 'pandas', 'numpy'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", line], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True)
    assert found.stdout.strip() == b"False", found.stderr
