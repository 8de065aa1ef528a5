"""Checks that the examples of docs/extending.md work.

`test_extending.py` copies the project, adds the examples to the copy, and runs all checks there.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import torch
import yaml
from every_method import spec_of

import lantern
from helpers.configs import load_config, render_caption, typed_config
from helpers.figure_tables import SETTINGS, make_summary
from helpers.paths import ROOT
from helpers.tiny_models import generate, make_models, verifier_from
from helpers.tiny_processors import make_emu3_processor
from helpers.tiny_quality import BASELINE, NUM, OPTIONS, TOKENS, VOCAB, make_parts, make_records, measure
from helpers.tiny_transformers import make_tiny
from lantern.methods import make_method
from lantern.prompts import Prompt
from lantern.registry import PRESETS
from lantern.sampling import SamplingConfig
from lantern_pipeline.data.tables import method_columns
from lantern_pipeline.fetch.entries import parse_entries
from lantern_pipeline.figures.style import method_look
from lantern_pipeline.figures.tradeoff import split_curves
from lantern_pipeline.measure.exactness.output_distribution import VerifiedNodes
from lantern_pipeline.measure.exactness.total_variation import distribution_of_method
from lantern_pipeline.measure.quality.metric_models import MetricModels, load_parts
from lantern_pipeline.measure.registry import loading_modules
from lantern_pipeline.plan.figures import figure_table
from lantern_pipeline.plan.methods import expand, expand_methods
from lantern_pipeline.plan.paths import RunPlan
from lantern_pipeline.tables.comparisons import OF_IMAGES
from lantern_pipeline.tables.method_labels import label_method
from lantern_pipeline.tables.summary import SUMMARY_COLUMNS


def config_of(folder: Path, *overlays: Path, **changes: object):
    """Return the checked config of the defaults, some overlays and some more keys.

    Args:
        folder: folder in which the keys are written as a config file.
        overlays: config files.
        changes: the keys.
    """
    (folder / "more.yaml").write_text(yaml.safe_dump(changes))
    return typed_config(load_config([ROOT / "config.yaml", *overlays, folder / "more.yaml"]))


def random_nodes(num_nodes: int, vocab: int) -> VerifiedNodes:
    """Return `num_nodes` tree nodes with random target and draft distributions, and one sampled draft each."""
    logits = 1.5 * torch.randn(2, num_nodes, vocab, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target, draft = logits[0].softmax(-1), (logits[0] + logits[1]).softmax(-1)
    image = torch.arange(num_nodes) % 5
    return VerifiedNodes(target, draft, draft.topk(1).indices, image, depths=torch.zeros_like(image))


def check_acceptance(folder: Path) -> None:
    """Check that the new preset decodes and is benchmarked.

    It must also have a label, a colour, a curve and a total variation.
    """
    config = config_of(folder, methods=[{"preset": "autoregressive"}, {"preset": "typical", "floor": [0.1, 0.3]}])
    specs = [run.spec for run in expand_methods(config)][1:]
    assert [spec.method_id for spec in specs] == ["typical-floor0.1", "typical-floor0.3"]
    assert label_method(specs[0].to_dict()) == "Medusa floor 0.1"
    assert method_look("typical")["color"] not in {method_look(name)["color"] for name in PRESETS if name != "typical"}
    curves = split_curves(pd.DataFrame([method_columns(spec.to_dict()) for spec in specs]))
    assert set(curves["curve"]) == {"Medusa: floor 0.1–0.3"}
    assert spec_of("typical").parameters == {"floor": 0.5}

    models = make_models()
    exact = generate(models, make_method("eagle1", tree="chain3"))
    relaxed = generate(models, specs[0])
    assert relaxed.codes.shape == exact.codes.shape
    assert relaxed.target_forwards.sum() < exact.target_forwards.sum()
    greedy = [generate(models, spec, temperature=0.0).codes for spec in (specs[0], make_method("autoregressive"))]
    assert torch.equal(*greedy)

    nodes = random_nodes(20, 24)
    kind, found = distribution_of_method(nodes, verifier_from(specs[0], SamplingConfig()), 10, 0)
    assert kind == "enumeration" and 0 < found.tv_from(nodes.target_probs).mean() < 1


def check_package(folder: Path) -> None:
    """Check that a package's preset generates an image, and that the config and the tables know it."""
    parts = {"k": 4, "lambda_": 3.0, "cap": 0.2}
    assert lantern.load("embedded").generate("a large red circle", method="capped", **parts).codes.shape == (1, 64)
    entry = {"preset": "capped", "k": 20, "lambda_": 5, "cap": [0.05, 0.2]}
    specs = [run.spec for run in expand_methods(config_of(folder, methods=[{"preset": "autoregressive"}, entry]))][1:]
    assert [spec.method_id for spec in specs] == ["capped-k20-lambda5-cap0.05", "capped-k20-lambda5-cap0.2"]
    assert label_method(specs[0].to_dict()) == "Capped k 20, λ 5, cap 0.05" and specs[0].code


def check_metric(folder: Path) -> None:
    """Check that the new metric is measured, and appears in the summary and in the paired comparisons."""
    choices = config_of(folder).metrics
    assert "measure/quality/contrast.py" in loading_modules(choices)
    metrics = choices.model_copy(update={"fidelity": None, "clip": None, "prompt_accuracy": False})
    models = MetricModels(**make_parts(), scores=list(load_parts(metrics, {}, "cpu").values()))
    prompts = [Prompt(str(number), "a red circle") for number in range(NUM)]
    codes = torch.randint(VOCAB, (NUM, TOKENS), generator=torch.Generator().manual_seed(0))
    records = {BASELINE.method_id: make_records(codes, BASELINE, prompts)}
    rows, images = measure(records, prompts, None, models, **OPTIONS)
    assert 0 < rows["contrast"][0] < 1 and images["contrast"].nunique() == NUM
    assert {"contrast", "contrast_low", "contrast_high"} <= set(SUMMARY_COLUMNS) and "contrast" in OF_IMAGES


def check_figure(folder: Path) -> None:
    """Check that the new figure is listed with its caption, and that it draws a line per method."""
    from lantern_pipeline.figures.lengths import draw_lengths

    config = config_of(folder)
    figure = figure_table(RunPlan(config, parse_entries(config.resource_entries), expand(config)))["lengths"]
    assert figure.letter == "s"
    caption = render_caption("lengths", {}, {"prompts": "20 prompts", "prompt_set": "seen"}, folder)
    assert "20 prompts of the set\nseen" in caption
    (axes,) = draw_lengths(make_summary(), SETTINGS).axes
    assert len(axes.containers) == len(axes.get_yticklabels()) == 4


def check_family(folder: Path) -> None:
    """Check that a tiny model of the new family generates images, and that `model:` fills in its config keys."""
    model, _ = make_tiny("emu3")
    ours = lantern.from_transformers(model, make_emu3_processor(), family="emu3_square", grid=4)
    expected, found = (ours.generate("a red fox", method=name).codes for name in ("autoregressive", "jacobi"))
    assert expected.shape == (1, 16) and torch.equal(found, expected)

    config = config_of(folder, ROOT / "experiments" / "emu3.yaml", model="emu3-square")
    assert (config.text.encoder, config.target.checkpoint) == ("emu3_square", "emu3_square")
    assert "emu3_square" in config.resource_entries and config.tokenizer.grid == 32
