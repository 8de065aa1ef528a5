"""Tests of weights of another run instead of training: what runs, what is reported, what is refused."""

import json
from dataclasses import replace

import pytest
import yaml

from helpers.paths import ROOT
from helpers.tiny_fashion import write_fashion
from helpers.tiny_run import TRAINING, Workflow, planned, with_overlay
from lantern.io import load_tensors

MODELS = ["tokenizer", "target/s0", "drafter/s0", "attribute_classifier", "clip"]
REPORTS = [f"results/tiny/{model}/report.json" for model in MODELS]


@pytest.fixture
def borrower(finished, tmp_path):
    """Return a run in its own folder on the weights of the finished one."""
    weights = {
        model.partition("/")[0]: {"checkpoint": str(finished.result(model) / "model.safetensors")} for model in MODELS
    }
    return with_overlay(Workflow(tmp_path), tmp_path, **weights)


def test_a_run_on_finished_weights_trains_nothing_and_says_the_same_of_them(finished, borrower):
    code, output = borrower.run(*REPORTS)
    assert code == 0 and not TRAINING & set(planned(output)), output + borrower.logs()
    for model in MODELS:
        theirs, ours = (run.result(model) / "model.safetensors" for run in (finished, borrower))
        (theirs, metadata), (ours, _) = load_tensors(theirs), load_tensors(ours)
        assert all((theirs[name] == ours[name]).all() for name in theirs) and len(theirs) == len(ours)
        report = json.loads((borrower.result(model) / "report.json").read_text())
        trained = {key: value for key, value in metadata.items() if key not in ("kind", "config")}
        assert trained and {key: report[key] for key in trained} == trained
        assert report["checkpoint"] == "model.safetensors"
    assert "no wrong images" not in output, "a drafter of our own is no stranger to its target"


def test_only_an_ablation_of_drafters_still_trains(borrower):
    _, output = borrower.run("--dry-run", "--quiet", "rules")
    assert {name for name in planned(output) if name.startswith("train")} == {"train_drafter"}, output


def test_weights_of_another_config_are_refused_in_a_sentence(borrower, tmp_path):
    overlay = tmp_path / "other.yaml"
    overlay.write_text(yaml.safe_dump({"text": {"max_tokens": 20}}))
    borrower.overlays = (*borrower.overlays, overlay)
    code, output = borrower.run("results/tiny/target/s0/report.json")
    assert code != 0 and "text.max_tokens must be 16" in output and "Traceback" not in output, output


# --- the weights in models/embedded ----------------------------------------------------------------


def plan(folder, *overlays, **sections):
    """Return rule -> number of jobs of a run of the default config in an empty folder."""
    (folder / "models").symlink_to(ROOT / "models")
    overlays = tuple(ROOT / "experiments" / f"{name}.yaml" for name in overlays)
    workflow = Workflow(folder, overlays, config=())
    if sections:
        workflow = replace(workflow, overlays=(*overlays, *with_overlay(workflow, folder, **sections).overlays))
    code, output = workflow.run("--dry-run", "--quiet", "rules")
    assert code == 0, output
    return planned(output)


@pytest.mark.parametrize(
    "overlays, sections", [((), {"seed": 1}), (("fashion",), {"data": {"folder": "fashion"}})], ids=str
)
def test_a_run_on_shipped_weights_trains_nothing_whatever_its_seed(tmp_path, overlays, sections):
    write_fashion(tmp_path / "fashion")
    jobs = plan(tmp_path, *overlays, **sections)
    assert not [name for name in jobs if name.startswith("train")], jobs
    assert jobs["convert_tokenizer"] == jobs["convert_target"] == jobs["convert_drafter"] == 1
    assert jobs["convert_measuring_model"] == 2


@pytest.mark.parametrize("overlays", [("embedded_training",), ("fashion", "fashion_training")], ids=str)
def test_the_weights_come_from_a_run_that_trains_all_five(tmp_path, overlays):
    write_fashion(tmp_path / "fashion")
    jobs = plan(tmp_path, *overlays, **({"data": {"folder": "fashion"}} if "fashion" in overlays else {}))
    assert set(jobs) >= TRAINING and not [name for name in jobs if name.startswith("convert")], jobs


def test_own_images_train_models_of_their_own(tmp_path):
    (tmp_path / "images").mkdir()
    jobs = plan(tmp_path, "own_images")
    assert set(jobs) >= TRAINING and not [name for name in jobs if name.startswith("convert")], jobs
