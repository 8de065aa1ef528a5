"""The command line: what it draws is tested on a trained tiny run (tests/workflow); here, what it says otherwise."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from conftest import ROOT
from lantern.methods import expand_methods
from lantern_pipeline.cli import app, load_config
from lantern_pipeline.cli_sample import TrainedRun

CONFIG = str(ROOT / "config.yaml")


def run(*arguments):
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_an_untrained_experiment_names_the_command_that_trains_it(tmp_path):
    code, output = run("sample", "a red circle on grass", "--results", str(tmp_path), "--configfile", CONFIG)
    assert code == 1
    assert "run `make reproduce` first" in output and "Traceback" not in output
    assert len(output.strip().splitlines()) == 1


def test_a_bad_config_is_one_sentence(tmp_path):
    overlay = tmp_path / "o.yaml"
    overlay.write_text("sampling:\n  topk: 3\n")
    code, output = run("sample", "a red circle on grass", "--configfile", CONFIG, "--configfile", str(overlay))
    assert code == 1 and "config key sampling.topk is unknown; did you mean top_k?" in output


def test_a_missing_config_is_named(tmp_path):
    code, output = run("sample", "a red circle on grass", "--configfile", str(tmp_path / "none.yaml"))
    assert code == 1 and "none.yaml" in output


@pytest.mark.parametrize("arguments", [[], ["--help"], ["sample", "--help"]])
def test_help_is_shown(arguments):
    _, output = run(*arguments)
    assert "Usage" in output and "sample" in output


def test_later_config_files_lie_over_earlier_ones(tmp_path):
    overlay = tmp_path / "o.yaml"
    overlay.write_text(
        "sampling:\n  cfg_scale: 2.0\nmethods:\n  - preset: autoregressive\nprompts:\n  unseen: null\n"
        "repeats:\n  training_seeds: [1, 2]\nablations:\n  grids:\n    k: null\n"
    )
    config = load_config([Path(CONFIG), overlay])
    assert config["sampling"]["cfg_scale"] == 2.0 and config["sampling"]["top_p"] == 1.0
    assert config["methods"] == [{"preset": "autoregressive"}]
    assert config["prompts"]["unseen"] is None and config["prompts"]["seen"]["split"] == "seen"
    assert config["repeats"] == {"training_seeds": [1, 2], "noise_seeds": [0]}
    assert config["ablations"]["grids"]["k"] is None and config["ablations"]["grids"]["delta"] is not None


def test_a_bad_ablation_is_one_sentence(tmp_path):
    overlay = tmp_path / "o.yaml"
    overlay.write_text("ablations:\n  grids:\n    k:\n      methods:\n        - preset: lanturn\n")
    code, output = run("sample", "a red circle on grass", "--configfile", CONFIG, "--configfile", str(overlay))
    assert code == 1 and "config key ablations.grids.k.methods[0]: preset must be one of" in output
    assert len(output.strip().splitlines()) == 1


@pytest.mark.parametrize("missing", ["target/s3", "drafter/s3"])
def test_the_models_are_those_of_the_first_training_seed(tmp_path, missing):
    config = load_config([Path(CONFIG)]) | {"repeats": {"training_seeds": [3, 0], "noise_seeds": [0]}}
    stored = object.__new__(TrainedRun)
    stored.config, stored.folder = config, tmp_path
    for stage in {"target/s3", "drafter/s3"} - {missing}:
        (tmp_path / stage).mkdir(parents=True)
        (tmp_path / stage / "model.safetensors").touch()
    coupled = next(method for method in expand_methods(config) if method.spec.name == "coupled")
    with pytest.raises(FileNotFoundError, match=f"{missing}/model.safetensors: run `make reproduce` first"):
        stored._make_decoder(coupled)
