"""The command line: what it draws is tested on a trained tiny run (tests/workflow); here, what it says otherwise."""

import json

import pytest
from typer.testing import CliRunner

from conftest import ROOT, load_config
from lantern_pipeline.cli import app
from lantern_pipeline.cli_sample import FinishedRun

CONFIG = load_config([ROOT / "config.yaml"])


def run(*arguments):
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def finish(results, *experiments):
    for name in experiments:
        (results / name).mkdir(parents=True)
        (results / name / "provenance.json").write_text(json.dumps({"config": CONFIG}))


@pytest.mark.parametrize("command", [["sample", "a red circle on grass"], ["pack"]])
def test_without_a_finished_experiment_one_sentence_says_what_to_do(tmp_path, command):
    code, output = run(*command, "--results", str(tmp_path))
    assert code == 1 and len(output.strip().splitlines()) == 1
    assert "run `make reproduce` to the end first, or name the folder of its results with --results" in output


@pytest.mark.parametrize("chosen", [[], ["--experiment", "third"]])
def test_of_several_experiments_one_is_to_be_chosen(tmp_path, chosen):
    finish(tmp_path, "first", "second")
    code, output = run("sample", "a red circle on grass", "--results", str(tmp_path), *chosen)
    assert code == 1 and "2 finished experiments: choose with --experiment first | second" in output
    assert ("holds no third but" in output) == bool(chosen)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["sample", "--help"]])
def test_help_is_shown(arguments):
    _, output = run(*arguments)
    assert "Usage" in output and "sample" in output


@pytest.mark.parametrize("missing", ["target/s3", "drafter/s3"])
def test_the_models_are_those_of_the_first_training_seed(tmp_path, missing):
    config = CONFIG | {"repeats": {"training_seeds": [3, 0], "noise_seeds": [0]}}
    stored = object.__new__(FinishedRun)
    stored.config, stored.folder = config, tmp_path
    for stage in {"target/s3", "drafter/s3"} - {missing}:
        (tmp_path / stage).mkdir(parents=True)
        (tmp_path / stage / "model.safetensors").touch()
    with pytest.raises(FileNotFoundError, match=f"{missing}/model.safetensors: run `make reproduce` first"):
        stored._load_decoders()


def test_a_method_without_a_draft_model_asks_for_none(tmp_path):
    stored = object.__new__(FinishedRun)
    stored.config, stored.folder = CONFIG, tmp_path
    assert [spec.method_id for spec in stored._choose(["jacobi"], 1.0)] == ["autoregressive", "jacobi"]
    with pytest.raises(FileNotFoundError, match=r"target/s0"):
        stored._load_decoders(["jacobi"])
    (tmp_path / "target" / "s0").mkdir(parents=True)
    (tmp_path / "target" / "s0" / "model.safetensors").touch()
    with pytest.raises(ValueError, match=r"target/s0"):  # an empty file; the drafter is missed by those who need it
        stored._load_decoders(["jacobi"])
    with pytest.raises(FileNotFoundError, match=r"drafter/s0"):
        stored._load_decoders(["jacobi", "coupled"])
    with pytest.raises(ValueError, match=r"--method must be a preset or one of autoregressive, .*, got 'jakobi'"):
        stored._choose(["jakobi"], 1.0)
