"""Tests of the command line: its messages. Images are tested on a trained tiny run (tests/workflow)."""

import json
import re
import shlex
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from helpers.configs import load_config
from helpers.paths import ROOT
from lantern.cards.card import read_card
from lantern.io import write_json
from lantern_pipeline.cli import app

CONFIG = load_config([ROOT / "config.yaml"])


def run(*arguments):
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def finish(results, *experiments):
    for name in experiments:
        (results / name).mkdir(parents=True)
        (results / name / "provenance.json").write_text(json.dumps({"config": CONFIG}))


def test_without_a_finished_experiment_one_sentence_says_what_to_do(tmp_path):
    code, output = run("sample", "a red circle on grass", "--results", str(tmp_path))
    assert code == 1 and len(output.strip().splitlines()) == 1
    assert "run `make reproduce` to the end first, or name the folder of its results with --results" in output


@pytest.mark.parametrize("chosen", [[], ["--experiment", "third"]])
def test_of_several_experiments_one_is_to_be_chosen(tmp_path, chosen):
    finish(tmp_path, "first", "second")
    code, output = run("sample", "a red circle on grass", "--results", str(tmp_path), *chosen)
    assert code == 1 and "2 finished experiments: choose with --experiment first | second" in output
    assert ("holds no third but" in output) == bool(chosen)


def test_the_former_pack_names_what_replaced_it():
    code, output = run("pack", "--experiment", "mine", "--output", "mine.zip")
    assert code == 1 and output.count("\n") == 1 and "`zip -r FILE results/NAME` writes what `lantern verify" in output
    assert "pack" not in run("--help")[1]


@pytest.mark.parametrize("arguments", [[], ["--help"], ["sample", "--help"]])
def test_help_is_shown(arguments):
    _, output = run(*arguments)
    assert "Usage" in output and "sample" in output


# --- without any run -------------------------------------------------------------------------------

PROMPT = "a large red circle on grass"


def test_right_after_installation_a_prompt_is_drawn_from_the_weights(home):
    code, output = run("sample", PROMPT)
    assert (
        code == 0
        and f"generating images with {home / 'models' / 'embedded'}" in output
        and "wrote sample.png" in output
    ), output
    methods = [line.split()[0] for line in output.splitlines()[2:-1]]
    assert methods == ["autoregressive", "EAGLE-1", "Jacobi", "LANTERN", "LANTERN++"]
    assert (home / "sample.png").stat().st_size > 1000 and not (home / "results").exists()
    code, output = run("sample", PROMPT, "--method", "proximity k=20 tree=chain5")
    assert code == 0 and "\nproximity (chain5) k 20 " in output, output
    assert [line.split()[0] for line in output.splitlines()[2:-1]] == ["autoregressive", "proximity"]


def test_words_that_are_no_caption_are_drawn_with_a_warning_and_equal_images_are_named(home, caplog):
    code, output = run("sample", "grass grass grass")
    assert code == 0 and caplog.text.count("is no caption that the model has learnt") == 1
    lines = output.splitlines()[2:-1]
    equal, other = "equal to autoregressive decoding's", "another one"
    for line, image in zip(lines, [equal, other, equal, other, other], strict=True):
        assert line.endswith(image), output


def test_the_photographs_of_clothes_are_drawn_by_name(tmp_path):
    picture = tmp_path / "dress.png"
    options = ("--model", "fashion", "--method", "jacobi", "--output", str(picture))
    code, output = run("sample", "a dark patterned dress", *options)
    assert code == 0 and "equal to autoregressive decoding's" in output, output
    assert picture.stat().st_size > 1000
    code, output = run("sample", "a dark hippopotamus", *options)
    assert code == 1 and "unknown word 'hippopotamus'; known words: a, dark, grey, light, plain" in output
    code, output = run("sample", " ", *options)
    assert code == 1 and "for example 'a dark patterned dress'; it knows the words a, dark" in output


COMMANDS = re.findall(r"^lantern (sample .*?)$(?<!\\)", (ROOT / "docs" / "models.md").read_text(), re.M | re.S)


@pytest.mark.parametrize(
    "command", [pytest.param(COMMANDS[0], marks=pytest.mark.slow), COMMANDS[1]], ids=("embedded", "fashion")
)
def test_the_documented_prompts_are_captions_and_make_a_row_each(command, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    code, output = run(*shlex.split(command.replace("\\\n", "")), "--method", "jacobi")
    assert code == 0 and output.count("\nJacobi ") == 6, output
    assert output.count("equal to autoregressive decoding's") == 12 and "is no caption" not in caplog.text
    (picture,) = (tmp_path / "docs").iterdir()
    assert (ROOT / "docs" / picture.name).stat().st_size <= 300_000


@pytest.mark.parametrize(
    "prompt, options, sentence",
    [
        ("", [], "for example 'a small white ring above a large blue triangle on grass'; it knows the words a"),
        ("a purple hippopotamus", [], "unknown word 'hippopotamus'; known words: a, small, large"),
        (PROMPT, ["--method", "jakobi"], "preset must be one of autoregressive, "),
        (PROMPT, ["--method", "lantern k=20"], "method lantern with drafts top and acceptance additive needs delta"),
        (
            PROMPT,
            ["--size", "24x48"],
            "size must be (24, 24), the (height, width) of all images of this model, got (24, 48)",
        ),
        (PROMPT, ["--size", "48"], "size must be a height and a width in pixels, such as 1152x768, got '48'"),
        (PROMPT, ["--experiment", "embedded"], "holds no finished experiment"),
    ],
)
def test_what_cannot_be_drawn_from_the_weights_is_said_in_a_sentence(home, prompt, options, sentence):
    code, output = run("sample", prompt, *options)
    assert code == 1 and sentence in output.splitlines()[-1] and len(output.splitlines()) <= 2


def test_a_damaged_weight_file_and_words_of_another_target_are_named(home):
    weights = home / "models" / "embedded"
    card = read_card(weights)
    write_json(weights / "card.json", replace(card, prompts=replace(card.prompts, encoder="word_ids")).to_dict())
    code, output = run("sample", PROMPT)
    assert code == 1 and "text.encoder should be word_ids to fit the model (text encoder), found words" in output
    write_json(weights / "card.json", card.to_dict())
    (weights / "target.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    code, output = run("sample", PROMPT)
    assert code == 1 and "target.safetensors should be a PyTorch or safetensors file, found b'version" in output
