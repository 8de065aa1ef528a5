"""Tests of the command line: its messages. Images are tested on a trained tiny run (tests/workflow)."""

import json
import re
import shlex
from dataclasses import replace
from inspect import signature

import pytest
import typer
from typer.testing import CliRunner

import lantern
from helpers.configs import load_config
from helpers.paths import ROOT
from lantern.io import write_json
from lantern_models.cards.card import read_card
from lantern_pipeline.cli import app
from lantern_pipeline.cli_words import OPTIONS, read_method

CONFIG = load_config([ROOT / "config.yaml"])
PROMPT = "a large red circle on grass"


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


def test_help_is_shown():
    for arguments in ([], ["--help"], ["sample", "--help"]):
        _, output = run(*arguments)
        assert "Usage" in output and "sample" in output


def test_the_version_is_shown():
    assert run("--version") == (0, f"lantern {lantern.__version__}\n")


# --- the words of a method -------------------------------------------------------------------------

ARGUMENTS = {*signature(lantern.Model.generate).parameters, "top_k", "top_p", "grid", "device", "method_id", "is_exact"}


@pytest.mark.parametrize("command", OPTIONS)
def test_a_method_takes_its_own_parameters_only(command):
    for name in sorted(ARGUMENTS):
        option = OPTIONS[command].get(name)
        remedy = f"set it with {option}" if option else f"lantern {command} has no option for it"
        with pytest.raises(ValueError, match=f"got {name} for jacobi; {remedy}"):
            read_method(f"jacobi {name}=1", command)


def test_the_options_that_messages_name_exist():
    commands = typer.main.get_command(app).commands
    for command, options in OPTIONS.items():
        known = {name for parameter in commands[command].params for name in parameter.opts}
        assert {option for option in options.values() if option.startswith("--")} <= known


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("sample", "text", "--method", "jacobi size=48"), "set it with --size"),
        (("sample", "text", "--method", "jacobi seed=1"), "lantern sample has no option for it"),
        (("bench", "--methods", "jacobi temperature=0.5"), "set it with --temperature"),
        (("predict", "--method", "jacobi cfg_scale=1"), "lantern predict has no option for it"),
        (("predict", "--method", "jacobi tree=chain5"), "leave its parameters out, or add --bench"),
        (("audit", "jacobi", "--batch-size", "2"), "lantern audit has no option for it"),
        (("sample", "text", "--method", " "), "a method must be a preset and its parameters"),
        (("sample", "text", "--method", "jacobi tree"), "got 'tree' for jacobi; repeat --method"),
        (("sample", "text", "--method", "jacobi tree="), "got 'tree='; give both"),
        (("sample", "text", "--method", "jacobi tree=["), "which is no YAML"),
        (("sample", "text", "--method", "lantern k=2 k=3"), "k must be given once, got k=3 after k=2"),
    ],
)
def test_wrong_words_of_a_method_are_refused_before_a_model_is_loaded(arguments, sentence, monkeypatch):
    monkeypatch.setattr(lantern, "load", None)
    code, output = run(*arguments)
    assert code == 1 and sentence in output and output.count("\n") == 1, output


@pytest.mark.parametrize("part", ["drafts=os:PathLike", "acceptance=os:PathLike"])
def test_a_class_that_is_no_part_of_a_method_is_named(home, part):
    code, output = run("sample", PROMPT, "--method", f"jacobi {part}")
    assert code == 1 and "os:PathLike must define make" in output, output


def test_numbers_have_every_form_that_python_reads():
    forms = {"1e-1": 0.1, ".5": 0.5, "+.5": 0.5, "1_000": 1000, "+3": 3, "010": 10, "1e3": 1000, "1E3": 1000}
    for text, value in forms.items():
        (found,) = read_method(f"lantern k={text}", "sample")[1].values()
        assert found == value and type(found) is type(value), text


@pytest.mark.parametrize("number", ["nan", "-infinity", "1e999"])
def test_numbers_without_end_are_refused_by_name(home, number):
    code, output = run("sample", PROMPT, "--method", f"lantern_pp k=3 lambda_={number}")
    assert code == 1 and re.search("lambda_ of lantern_pp must be >= 1, got .*, which is not finite", output), output


# --- output ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.jpg", "folder", "..", ".png", ""])
def test_the_name_of_the_output_is_checked_before_a_model_is_loaded(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lantern, "load", None)
    (tmp_path / "folder").mkdir()
    code, output = run("sample", "text", "--output", name)
    assert code == 1 and "--output must be a file name that ends in .png or .pdf, got" in output, output


def test_the_folder_of_the_output_is_checked_before_a_model_is_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lantern, "load", None)
    (tmp_path / "file").touch()
    code, output = run("sample", "text", "--output", "file/a.png")
    assert code == 1 and "--output must be in a folder, got file" in output, output
    monkeypatch.setattr("os.access", lambda *_: False)
    code, output = run("sample", "text", "--output", "new/a.png")
    assert code == 1 and "must be in a folder that you may write to" in output, output


def test_a_suffix_in_capitals_and_a_missing_folder_are_right(home):
    code, output = run("sample", PROMPT, "--method", "jacobi", "--output", "new/folder/A.PNG")
    assert code == 0 and (home / "new" / "folder" / "A.PNG").read_bytes().startswith(b"\x89PNG"), output


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_a_table_in_an_encoding_without_deltas_is_shown(home, encoding):
    arguments = ["sample", PROMPT, "--method", "lantern k=3 delta=0.1"]
    result = CliRunner(charset=encoding).invoke(app, arguments)
    # click takes ascii for a wrong setting and writes UTF-8
    delta = r"\?" if encoding != "ascii" else r"\S+"
    assert result.exit_code == 0 and re.search(f"LANTERN k 3, {delta} 0.1 ", result.output), result.output


# --- without any run -------------------------------------------------------------------------------


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


COMMANDS = re.findall(r"^lantern (sample .*?)$(?<!\\)", (ROOT / "docs" / "models.md").read_text(), re.M | re.S)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=("embedded", "fashion"))
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
