"""Run by test_extending.py in a copy of the project that measures colourfulness."""

import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from result_tables import SETTINGS as OF_TABLES
from result_tables import make_tables
from tiny_quality import EXACT, NUM, OPTIONS, RELAXED, TOKENS, VOCAB, make_parts, make_records

import lantern_pipeline
from lantern.checkpoints.native import save_model
from lantern.methods import MethodSpec
from lantern_pipeline.analysis.comparisons import build_paired
from lantern_pipeline.analysis.markdown import markdown_table, method_cells, results_table
from lantern_pipeline.analysis.summary import build_summary
from lantern_pipeline.data.image_sources import SceneSource
from lantern_pipeline.metrics.measuring_models import load_measuring_models
from lantern_pipeline.metrics.quality import measure_quality
from lantern_pipeline.metrics.registry import CHOICES, MetricFiles

assert Path(lantern_pipeline.__file__).is_relative_to(sys.argv[1])
Colourfulness = import_module("lantern_pipeline.metrics.colourfulness").Colourfulness  # in the copy alone
SPECS = (MethodSpec("autoregressive", method_id="autoregressive"), EXACT, RELAXED)


def load_models(source):
    """Everything that a config can switch off is off."""
    parts = make_parts(source.vocabulary)
    save_model("target.safetensors", parts["target_model"])
    save_model("tokenizer.safetensors", parts["tokenizer"])
    encoder = parts["text_encoder"]
    metrics = {**dict.fromkeys(CHOICES), "published": {}}
    return load_measuring_models("tokenizer.safetensors", "target.safetensors", encoder, MetricFiles(), metrics, "cpu")


def check_values():
    """Grey has none; of a plain colour it is 0.3 times the length of (red - green, yellow - blue)."""
    grey, red = torch.zeros(1, 3, 8, 8), torch.tensor([1.0, -1.0, -1.0])[:, None, None].expand(1, 3, 8, 8)
    found = Colourfulness().score(torch.cat([grey, red]), [])["colourfulness"]
    assert found.tolist() == pytest.approx([0, 0.3 * (255**2 + 127.5**2) ** 0.5])


def measure():
    """The column stands in the table of images and, as a mean, in the rows."""
    source = SceneSource(0, image_size=48, num_train=16)
    prompts, models = source.prompts("seen", NUM), load_models(source)
    codes = torch.randint(VOCAB, (len(SPECS), NUM, TOKENS), generator=torch.Generator().manual_seed(0))
    records = {spec.method_id: make_records(rows, spec, prompts) for spec, rows in zip(SPECS, codes, strict=True)}
    measured = measure_quality(records, prompts, source, models, **OPTIONS)
    own = measured.images[measured.images["method_id"] == RELAXED.method_id]["colourfulness"]
    images = models.tokenizer.decode(codes[2]).float()
    assert own.to_numpy() == pytest.approx(Colourfulness().score(images, prompts)["colourfulness"].numpy(), rel=1e-4)
    assert (own > 0).all()


def check_tables():
    """Summary with an interval, paired difference with its words, the full Markdown table."""
    tables = make_tables()
    tables.images["colourfulness"] = 20.0 + 5 * (tables.images["method_id"] == "lantern-a")
    summary = build_summary(tables, settings=OF_TABLES, seed=0)
    row = summary.set_index("method_id").loc["lantern-a"]
    assert row["colourfulness_low"] <= row["colourfulness"] == 25 <= row["colourfulness_high"]
    decoded = tables.images[tables.images["method_id"] != "real"]
    paired = build_paired(decoded, tables.latency, settings=OF_TABLES, seed=0)
    paired = paired[paired["metric"] == "colourfulness"].set_index("method_id")
    assert paired["difference"]["lantern-a"] == 5
    assert paired["unit"]["lantern-a"] == "levels of 255"
    assert paired["conclusion"]["lantern-a"] == "higher at n = 20"
    assert "| colourfulness |" in markdown_table(method_cells(results_table(summary, OF_TABLES)))


check_values()
measure()
check_tables()
