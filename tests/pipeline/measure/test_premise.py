"""Tests of LANTERN's premise: replaced codes of images, and drafts accepted by nearest and by random codes."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from helpers.tiny_quality import SETTINGS, VOCAB, make_parts
from lantern.codebook import nearest_codes
from lantern_pipeline.data.image_sources import SceneSource
from lantern_pipeline.measure.exactness.output_distribution import VerifiedNodes
from lantern_pipeline.measure.exactness.total_variation import tv_curves
from lantern_pipeline.measure.premise import mean_ambiguity, relax_acceptance, replace_codes, score_replacements
from lantern_pipeline.measure.quality.fidelity import ClassifierFidelity
from lantern_pipeline.measure.quality.metric_models import MetricModels
from lantern_pipeline.measure.quality.prompt_accuracy import AccuracyScore
from lantern_pipeline.world.attribute_classifier import AttributeClassifier, AttributeClassifierConfig

OPTIONS = {"num_resamples": 20, "seed": 0}
NUM, NODES, CODES = 6, 40, 24


@pytest.fixture(scope="module")
def tables():
    codebook = torch.randn(CODES, 4, generator=torch.Generator().manual_seed(0))
    return {name: nearest_codes(codebook, 12, name) for name in ("l2_normalised", "random")}


@pytest.fixture(scope="module")
def nodes():
    generator = torch.Generator().manual_seed(1)
    target, draft = torch.randn(2, NODES, CODES, generator=generator, dtype=torch.float64).mul(2).softmax(-1)
    children = torch.multinomial(draft, 1, generator=generator)
    image = torch.arange(NODES) // 4
    return VerifiedNodes(target, draft, children, image, torch.zeros(NODES, dtype=torch.int64))


def test_a_code_is_replaced_by_one_of_its_first_k_codes_and_all_of_them_occur(tables):
    table = tables["l2_normalised"]
    codes = torch.arange(CODES).repeat(50, 1)
    found = replace_codes(codes, table, 3, seed=0)
    assert (found[..., None] == table[codes, :3]).any(dim=-1).all() and (found != codes).all()
    assert all(len(set(found[:, code].tolist())) == 3 for code in range(CODES))
    assert replace_codes(codes, table, 1, seed=0).equal(table[codes, 0].long())
    assert replace_codes(codes, table, 3, seed=0).equal(found) and not replace_codes(codes, table, 3, seed=1).equal(
        found
    )


def test_images_without_replaced_codes_are_reconstructions_and_others_differ():
    source = SceneSource(0, image_size=48, num_train=16)
    torch.manual_seed(1)
    classifier = AttributeClassifier(AttributeClassifierConfig(width=8, num_features=8)).eval()
    of_sets = {"fidelity": ClassifierFidelity(classifier)}
    models = MetricModels(**make_parts(source.vocabulary), scores=[AccuracyScore(classifier)], of_sets=of_sets)
    same = torch.arange(VOCAB)[:, None].expand(-1, 4).int()
    other = torch.stack([(torch.arange(VOCAB) + shift) % VOCAB for shift in range(1, 5)], dim=1).int()
    arguments = {"num_images": NUM, "cfg_scale": 3.0, "fidelity": SETTINGS, "options": OPTIONS}
    rows = score_replacements(source, models, {"same": same, "random": other}, [1, 4], **arguments)
    assert rows[["neighbours", "k"]].to_numpy().tolist() == [
        *(["none", 0], ["same", 1], ["same", 4], ["random", 1], ["random", 4])
    ]
    metrics = ["nll", "prompt_accuracy", "frechet_distance", "kernel_distance", "precision", "pixel_mse"]
    unchanged, *unreplaced = (rows.loc[place, metrics] for place in range(3))
    assert unchanged["pixel_mse"] == 0 and all(row.equals(unchanged.rename(row.name)) for row in unreplaced)
    assert (rows["pixel_mse"][3:] > 0).all() and (rows["num_images"] == NUM).all()
    assert (rows["nll_low"] <= rows["nll"]).all() and (rows["nll"] <= rows["nll_high"]).all()
    parts = score_replacements(source, replace(models, batch_size=5), {"random": other}, [4], **arguments)
    assert parts[metrics].to_numpy(float) == pytest.approx(
        rows.loc[[0, 4], metrics].to_numpy(float), rel=1e-3, abs=1e-5
    )


def test_acceptance_and_total_variation_are_those_of_lanterns_formula(nodes, tables):
    rows = relax_acceptance(nodes, tables, [3, 12], [0, 0.05, 0.4], OPTIONS).set_index(["neighbours", "k"])
    exact = torch.minimum(nodes.target_probs, nodes.draft_probs).sum(-1).mean()
    for delta in ("0", "0.05", "0.4"):
        assert rows.loc[("none", 0), f"acceptance_{delta}"] == pytest.approx(float(exact), rel=1e-9)
        assert rows.loc[("none", 0), f"tv_mean_{delta}"] < 1e-9
    assert np.allclose(rows["acceptance_0"], float(exact)) and np.allclose(rows["tv_mean_0"], 0)
    for name, table in tables.items():
        curves = tv_curves(nodes, table, k=12, deltas=[0.05, 0.4], num_children=1, options=OPTIONS)
        of_paper = curves[curves["rule"] == "sampled_paper"].set_index("delta")
        for delta in (0.05, 0.4):
            row = of_paper.loc[delta]
            assert rows.loc[(name, 12), f"acceptance_{delta:g}"] == row["acceptance"]
            for end in ("", "_low", "_high"):
                assert rows.loc[(name, 12), f"tv_mean_{delta:g}{end}"] == row[f"tv_mean{end}"]
        assert rows.loc[(name, 3), "acceptance_0.4"] <= rows.loc[(name, 12), "acceptance_0.4"]
        assert rows.loc[(name, 12), "acceptance_0.05"] < rows.loc[(name, 12), "acceptance_0.4"]
    assert (rows["num_nodes"] == NODES).all()


def test_ambiguity_is_the_mean_at_the_guidance_scale_of_the_run():
    columns = {"cfg_scale": [1.0, 3.0, 3.0], "top1": [0.9, 0.1, 0.3], "top10": [1.0, 0.5, 0.7], "entropy": [0, 4, 3]}
    expected = {"target_top1": 0.2, "target_top10": 0.6, "target_entropy": 3.5}
    assert mean_ambiguity(pd.DataFrame(columns), 3.0) == pytest.approx(expected)
