"""The table of metrics: what it says of each, and that it can be read without torch and pandas."""

import subprocess
import sys

from lantern_pipeline.metrics.registry import (
    CHOICES,
    DECODING,
    HIGHER,
    IMAGES,
    LOWER,
    METRICS,
    NEITHER,
    SETS,
    metrics_over,
)


def test_every_metric_stands_once_with_a_known_kind_and_direction():
    assert len({metric.column for metric in METRICS}) == len({metric.per_image for metric in METRICS}) == len(METRICS)
    assert {metric.over for metric in METRICS} == {IMAGES, SETS, DECODING}
    assert {metric.better for metric in METRICS} == {HIGHER, LOWER, NEITHER}
    assert all(("%" in metric.title) <= metric.is_share for metric in METRICS)


def test_every_switch_of_a_config_has_its_metrics():
    assert {metric.key for metric in METRICS} == {None, *CHOICES}
    assert [metric.column for metric in metrics_over(SETS)] == ["fid", "kid", "precision", "recall"]


def test_the_table_is_read_without_torch_and_pandas():
    line = "import sys, lantern_pipeline.metrics.registry; print(bool({'torch', 'pandas', 'numpy'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", line], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True)
    assert found.stdout.strip() == b"False", found.stderr
