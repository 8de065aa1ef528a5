"""Tests of what a config plans, and of the paths of its files."""

import copy

import pytest

from helpers.configs import load_config, typed_config
from helpers.paths import ROOT
from lantern_pipeline.fetch.entries import parse_entries
from lantern_pipeline.plan.methods import expand
from lantern_pipeline.plan.paths import (
    RunPlan,
    answer_files,
    drafter_for,
    drafter_of,
    drafter_settings,
    heads_for,
    heads_of,
    table_of,
    tables_of,
)
from lantern_pipeline.schema.run_config import Drafter

DEFAULT = load_config([ROOT / "config.yaml"])


def plan(**sections):
    config = copy.deepcopy(DEFAULT)
    for name, section in sections.items():
        config[name] = {**config[name], **section} if isinstance(section, dict) else section
    checked = typed_config(config)
    return RunPlan(checked, parse_entries(checked.resource_entries), expand(checked))


def test_a_drafter_of_an_ablation_has_a_name_and_steps_of_its_own():
    section = Drafter(**{**DEFAULT["drafter"], "num_steps": 350, "num_epochs": 2})
    short = {**section.model_dump(), "num_steps": 40, "num_epochs": None}
    for name, steps, settings in (("", None, section.model_dump()), ("-40steps", 40, short)):
        assert drafter_of(13, steps) == f"<results>/drafter/s13{name}/model.safetensors"
        assert drafter_settings(name, section) == settings


def test_an_ablation_over_drafters_names_its_models_once():
    methods = [{"preset": ["coupled", "jacobi"]}, {"preset": "proximity", "k": [5, 20]}]
    planned = plan(ablations={"num_prompts": 2, "grids": {"mine": {"methods": methods, "drafter_steps": [40, None]}}})
    assert planned.drafters_of("mine") == {40: drafter_of(0, 40), None: drafter_of(0)}
    assert {*planned.drafters_of("mine").values()} <= set(planned.model_files())
    reports = [f"<results>/{name}/report.json" for name in ("target/s0", "drafter/s0", "drafter/s0-40steps", "clip")]
    assert set(reports) < set(planned.report_files()) and len(planned.report_files()) == 6


def test_only_relaxed_methods_read_a_table():
    specs = plan(methods=[{"preset": ["autoregressive", "eagle2"]}, {"preset": "proximity", "k": [5, 20]}]).specs
    assert table_of(specs["eagle2"]) == []
    assert tables_of(specs.values()) == [table_of(specs["proximity-k5"])]
    assert tables_of(specs.values())[0].startswith("<results>/codebook/")
    kinds = {"k": [5, 20], "neighbours": ["random", "l2_normalised", "l2"]}
    specs = plan(methods=[{"preset": "autoregressive"}, {"preset": "proximity", **kinds}]).specs
    names = ["l2", "l2_normalised", "random"]
    assert tables_of(specs.values()) == [f"<results>/codebook/{name}.safetensors" for name in names]


def test_a_run_is_every_method_at_its_temperatures():
    planned = plan(methods=[{"preset": "autoregressive", "temperatures": [0, 1]}, {"preset": "eagle2"}])
    assert planned.temperatures == ["0", "1"]
    assert planned.methods_at("0") == ["autoregressive"] and planned.methods_at("1") == ["autoregressive", "eagle2"]
    assert [temperature for _, temperature in planned.run_params()] == [0.0, 1.0, 1.0]
    assert [spec.method_id for spec, _ in planned.run_params("0")] == ["autoregressive"]


def test_repeats_and_prompt_sets_name_the_files():
    planned = plan(
        methods=[{"preset": "autoregressive"}],
        repeats={"training_seeds": [4], "noise_seeds": [0, 7]},
        prompts={"seen": {"split": "seen", "num": 4}, "unseen": None},
    )
    assert planned.repeats == ["s4n0", "s4n7"] and planned.first == {"training_seed": 4, "noise_seed": 0}
    assert planned.prompt_sets == ["seen"]
    folder = "<results>/generation/autoregressive/seen/T1"
    assert planned.all_records() == [f"{folder}/{repeat}/{{scatteritem}}.safetensors" for repeat in planned.repeats]
    assert planned.quality_tables("csv") == [f"<results>/quality/seen.T1.{repeat}.csv" for repeat in planned.repeats]
    assert planned.latency_tables("csv") == [f"<results>/latency/{repeat}.csv" for repeat in planned.repeats]


def test_output_distributions_are_of_sampled_tokens():
    assert plan().sampled == plan().headline
    greedy = plan(metrics={"headline_temperature": 0.0})
    assert greedy.headline["temperature"] == "0" and greedy.sampled["temperature"] == "1"
    methods = [{"preset": "autoregressive", "temperatures": [10, 0, 2]}]
    assert plan(methods=methods).temperatures == ["0", "2", "10"]
    assert plan(methods=methods, metrics={"headline_temperature": 0.0}).sampled["temperature"] == "10"


def test_every_model_is_named_once():
    files = plan().model_files()
    assert len(files) == len(set(files))
    names = ("tokenizer", "target/s0", "drafter/s0", "attribute_classifier", "clip")
    assert {f"<results>/{name}/model.safetensors" for name in names} <= set(files)


def test_a_run_of_jacobi_drafts_has_no_draft_model():
    grids = {"jacobi": {"methods": [{"preset": "jacobi", "tree": ["chain3", "chain9"]}]}}
    ablations = {"num_prompts": 2, "grids": grids}
    alone = plan(
        methods=[{"preset": ["autoregressive", "jacobi"]}], ablations=ablations, drafter={"checkpoint": "mine"}
    )
    assert not alone.needs_draft_model and alone.drafters_of("jacobi") == {}
    assert drafter_for(alone.specs.values(), 0) == []
    assert [file for file in alone.model_files() if "/drafter/" in file] == []
    assert "mine" not in alone.files_from_elsewhere()
    both = plan(methods=[{"preset": ["autoregressive", "jacobi", "hybrid"]}], ablations=ablations)
    assert drafter_for(both.specs.values(), 3) == drafter_of(3)
    assert drafter_for([both.specs["jacobi"]], 3) == [] and both.drafters_of("jacobi") == {}


def test_only_runs_whose_methods_need_them_have_shift_heads():
    grids = {"heads": {"methods": [{"preset": "ssd", "rounds": [0, 1]}]}}
    ablations = {"num_prompts": 2, "grids": grids}
    methods = [{"preset": ["autoregressive", "jacobi", "ssd"]}]
    assert not any("/heads/" in file for file in plan().model_files())
    assert heads_for(plan().specs.values(), 0) == []
    ablated = plan(methods=[{"preset": "jacobi"}], ablations=ablations)
    assert heads_for(ablated.specs.values(), 0) == [] and heads_of(0) in ablated.model_files()
    both = plan(methods=methods, ablations=ablations, repeats={"training_seeds": [0, 3]})
    assert {heads_of(0), heads_of(3)} <= set(both.model_files()) and not both.needs_draft_model
    assert heads_for(both.specs.values(), 3) == heads_of(3) == "<results>/heads/s3/model.safetensors"
    assert heads_for([both.specs["jacobi"]], 3) == []


def test_files_from_elsewhere_are_those_that_the_run_uses():
    planned = plan(
        text={"encoder": "t5", "checkpoint": "flan_t5_xl"},
        target={"checkpoint": "llamagen_stage1"},
        prompts={"seen": {"file": "parti_prompts", "num": 9}, "unseen": None},
        clip={"checkpoint": "mine/clip.safetensors"},
    )
    names = ("flan_t5_xl", "llamagen_stage1", "parti_prompts")
    wanted = {*(f"resources/{name}.json" for name in names), "mine/clip.safetensors"}
    assert wanted <= set(planned.files_from_elsewhere())
    words = plan(text={"encoder": "words", "checkpoint": "flan_t5_xl"})  # which reads none
    assert "resources/flan_t5_xl.json" not in words.files_from_elsewhere()


def test_answers_are_read_in_the_order_of_their_names_and_must_be_there(tmp_path):
    with pytest.raises(ValueError, match=r"there is no answer file in .*: let readers open study\.html"):
        answer_files(tmp_path, "study.html")
    names = [f"{number}.json" for number in (3, 1, 4, 5, 9, 2, 6)]
    for name in (*names, "note.txt"):
        (tmp_path / name).write_text("{}")
    assert answer_files(tmp_path, "study.html") == [(tmp_path / name).as_posix() for name in sorted(names)]


@pytest.mark.parametrize(
    ("presets", "ablated", "is_used"),
    [
        (["coupled"], None, True),
        (["jacobi"], "coupled", True),
        (["jacobi"], "jacobi", False),
        (["jacobi"], None, False),
    ],
)
def test_a_drafter_from_elsewhere_is_used_if_a_method_or_an_ablation_drafts_with_it(presets, ablated, is_used):
    planned = plan(
        methods=[{"preset": ["autoregressive", *presets]}],
        ablations={"num_prompts": 2, "grids": {"mine": ablated and {"methods": [{"preset": ablated}]}}},
        drafter={"checkpoint": "mine/drafter.safetensors"},
    )
    assert ("mine/drafter.safetensors" in planned.files_from_elsewhere()) == is_used
