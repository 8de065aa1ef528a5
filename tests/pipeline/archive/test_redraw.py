"""Tests of images that are generated again: what counts as equal, which methods can be checked, errors."""

import json
import random
import re
import shutil
import sys

import pytest
import torch
from typer.testing import CliRunner

from helpers.configs import load_config, typed_config
from helpers.paths import ROOT
from lantern.decoding import make_decoder
from lantern.generation import generate_records
from lantern.io import load_tensors, save_tensors
from lantern.models.draft import DraftConfig, DraftModel
from lantern.models.stored import save_model
from lantern.models.target import TargetConfig, TargetModel
from lantern.prompts import Prompt
from lantern.records import save_records
from lantern.sampling import SamplingConfig
from lantern_models.checkpoints.decoding_models import load_decoding_models
from lantern_pipeline.archive import redraw as redrawing
from lantern_pipeline.archive.provenance import FILE_PARTS, KIND, describe_code, hash_files
from lantern_pipeline.archive.redraw import choose_records
from lantern_pipeline.cli import app
from lantern_pipeline.data.prompt_files import write_prompts
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.plan.methods import expand_methods

PROMPTS = [Prompt(f"seen-{n}", text) for n, text in enumerate(["a red circle on grass", "a blue square on sand"])]
AUTOREGRESSIVE = "generation/autoregressive/seen/T1/s0n0/1-of-1.safetensors"
COUPLED = "generation/coupled/seen/T1/s0n0/1-of-1.safetensors"
CODE = describe_code()


@pytest.fixture
def config():
    config = load_config([ROOT / "config.yaml", ROOT / "tests" / "workflow" / "tiny.yaml"])
    return {**config, "methods": [{"preset": ["autoregressive", "coupled"]}]}


@pytest.fixture
def experiment(tmp_path, config):
    """Make a finished experiment with random models."""
    return make_experiment(tmp_path / "results" / "tiny", config)


def make_experiment(folder, config, *, dtype="float32"):
    torch.manual_seed(0)
    text, config["generation"]["dtype"] = config["text"], dtype
    target = TargetModel(TargetConfig(32, 2, 2, 32, 4, text["max_tokens"], text["caption_dim"], ffn_multiple=16))
    with torch.no_grad():
        target.head.weight.mul_(50)
    files = {name: folder / name / "s0" / "model.safetensors" for name in ("target", "drafter")}
    save_model(files["target"], target)
    save_model(files["drafter"], DraftModel(DraftConfig.of(target.config)))
    write_prompts(folder / "prompts/seen.jsonl", PROMPTS)
    encoder = make_text_encoder(typed_config(config).text_settings, "scenes")
    for run in expand_methods(typed_config(config)):
        spec = run.spec
        models = load_decoding_models(files["target"], files["drafter"] if spec.drafts else None, dtype=dtype)
        decoder = make_decoder(models, spec, SamplingConfig(temperature=run.temperature, **config["sampling"]))
        records = generate_records(decoder, PROMPTS, encoder, run_seed=0, batch_size=2)
        save_records(folder / f"generation/{run.spec.method_id}/seen/T1/s0n0/1-of-1.safetensors", records)
    (folder / "summary.csv").write_text("method,drafts,acceptance\ncoupled,coupled,exact\n")
    write_provenance(folder, config)
    return folder


def write_provenance(folder, config):
    parts = {
        "models": "*/s0/model.safetensors",
        "prompts": "prompts/*",
        "records": "generation/*/*/*/*/*",
        "figures": "*.png",
    }
    hashes = {part: hash_files(folder.glob(parts.get(part, "*.csv")), folder) for part in FILE_PARTS}
    provenance = {"kind": KIND, "code": CODE, **hashes, "config": config}
    (folder / "provenance.json").write_text(json.dumps(provenance))


def verify(folder, *arguments):
    """Verify an experiment, and return (exit code, all output)."""
    result = CliRunner().invoke(app, ["verify", str(folder), *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def change(path, edit, metadata=None):
    """Change the tensors, and possibly the metadata, of a tensor file."""
    tensors, found = load_tensors(path)
    edit(tensors)
    save_tensors(path, tensors, {**found, **(metadata or {})})


def test_untouched_results_are_verified(experiment):
    code, output = verify(experiment, "--images", "3")
    assert code == 0, output
    assert "checksums: 6 files are those of provenance.json" in output and "not compared" not in output
    assert "generate_images.py runs the code of the results" in output
    assert output.count("equal: ") == 3 and "16 of 16 tokens" in output
    assert "equal: autoregressive seen T1 s0n0 seen-" in output and "equal: coupled seen T1 s0n0 seen-" in output
    assert "verified: checksums; images generated again: 3 equal" in output


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_code_that_the_models_do_not_draw_is_found_though_all_hashes_fit(tmp_path, config, dtype):
    folder = make_experiment(tmp_path / "results" / "tiny", config, dtype=dtype)

    def edit(tensors):
        tensors["codes"][:, 5] = (tensors["codes"][:, 5] + 1) % 32

    change(folder / COUPLED, edit)
    write_provenance(folder, config)
    code, output = verify(folder, "--images", "2")
    assert "15 of 16 tokens, the first difference at token 5" in output and "equal: autoregressive" in output
    if dtype == "float32":
        assert code == 1 and "differs: coupled" in output and "1 of 2 images generated again differ" in output
    else:  # which rounds differently on each device
        assert code == 0 and "not comparable: coupled" in output


def test_models_that_the_results_lack_are_taken_from_a_folder_if_they_are_the_same(experiment, config, tmp_path):
    config["target"]["checkpoint"] = "llamagen_stage1"
    write_provenance(experiment, config)
    own = tmp_path / "own"
    shutil.copytree(experiment / "target", own / "target")
    (experiment / "target/s0/model.safetensors").unlink()
    code, output = verify(experiment)
    assert code == 1 and "lack target/s0/model.safetensors (sha256 " in output and "--models results/" in output
    code, output = verify(experiment, "--models", str(own))
    assert code == 0, output
    change(own / "target/s0/model.safetensors", lambda tensors: tensors["head.weight"].mul_(2))
    code, output = verify(experiment, "--models", str(own))
    assert code == 1 and "own/target/s0/model.safetensors should have sha256" in output


@pytest.mark.parametrize("name, text", [("seen-0", "an unknown word"), ("other", "a red circle on grass")])
def test_prompts_that_do_not_fit_the_records_are_one_sentence(experiment, config, name, text):
    write_prompts(experiment / "prompts/seen.jsonl", [Prompt(name, text)])
    write_provenance(experiment, config)
    code, output = verify(experiment, "--images", "4")
    assert code == 1 and ("unknown word" in output or "has no prompt" in output) and "Traceback" not in output


def test_a_class_that_results_name_is_not_imported(experiment, config, tmp_path, monkeypatch):
    """The class is named in the config, and in the records of an image."""
    name = "own_of_results:Capped"
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_of_results.py").write_text("raise RuntimeError('imported')")
    own = {"name": "mine", "tree": "chain3", "drafts": "top"}
    methods = config["methods"]
    config["methods"] = [*methods, {**own, "acceptance": ["exact", name]}]
    write_provenance(experiment, config)
    code, output = verify(experiment)
    assert code == 1 and "provenance.json: acceptance must be one of Lantern's own, got" in output
    assert verify(experiment, "--images", "0")[0] == 0  # sums need no class
    config["methods"] = methods
    for file in (AUTOREGRESSIVE, COUPLED):
        change(experiment / file, lambda tensors: None, {"method": {"acceptance": name}})
    write_provenance(experiment, config)
    code, output = verify(experiment)
    assert code == 1 and "1-of-1.safetensors: acceptance must be one of Lantern's own" in output
    assert "own_of_results" not in sys.modules


def test_what_is_beside_the_provenance_is_named(experiment, config):
    for number in range(5):
        (experiment / f"note{number}.txt").write_text("anything")
    code, output = verify(experiment, "--images", "0")
    names = "note0.txt, note1.txt, note2.txt"
    assert code == 0 and f"not listed in provenance.json, therefore not compared: {names} and 2 more" in output, output


def test_a_sample_has_as_many_methods_as_it_can():
    files = [f"generation/{method}/seen/T1/s0n{seed}/1-of-1.safetensors" for method in "abc" for seed in (0, 1)]
    for seed in range(5):
        chosen = choose_records(files, 5, random.Random(seed))
        assert len(set(chosen)) == 5 and {name.split("/")[1] for name in chosen[:3]} == set("abc")
    more = choose_records(files, 8, random.Random(0))
    assert len(set(more[:6])) == 6 and more[6:] == more[:2]  # of six files, from the first on again
    assert len({tuple(choose_records(files, 1, random.Random(seed))) for seed in range(20)}) > 3
    assert choose_records(files, 0, random.Random(0)) == choose_records(["a.csv"], 4, random.Random(0)) == []


def test_images_whose_file_was_not_compared_are_not_drawn(experiment):
    """The file beside those of the provenance has codes that no model draws."""
    other = experiment / AUTOREGRESSIVE.replace("n0", "n1")
    other.parent.mkdir()
    shutil.copy(experiment / AUTOREGRESSIVE, other)
    change(other, lambda tensors: tensors["codes"].zero_())
    code, output = verify(experiment, "--images", "12")
    assert code == 0 and "not compared: generation/autoregressive" in output and "s0n1 seen" not in output, output


def test_every_image_may_be_chosen_and_a_method_that_the_config_lacks_cannot_be_drawn(experiment, config):
    _, output = verify(experiment, "--images", "12")
    images = {f"{method} seen T1 s0n0 seen-{number}" for method in ("autoregressive", "coupled") for number in (0, 1)}
    assert set(re.findall(r"equal: (.*): 16 of 16", output)) == images
    config["methods"] = [{"preset": "autoregressive"}]
    write_provenance(experiment, config)
    code, output = verify(experiment, "--images", "2")
    assert code == 1 and f"{COUPLED}: the config has no coupled at T1" in output


def test_the_sample_does_not_depend_on_the_order_in_which_the_provenance_lists_its_files():
    files = [f"generation/a/seen/T1/s0n{number}/1-of-1.safetensors" for number in range(6)]
    assert choose_records(files, 6, random.Random(0)) == choose_records(files[::-1], 6, random.Random(0))


def test_the_sample_is_that_of_seed_0_unless_told_otherwise(experiment, monkeypatch):
    provenance = json.loads((experiment / "provenance.json").read_text())
    monkeypatch.setattr(redrawing, "_redraw", lambda *arguments: None)
    found, first, second = (
        [name for name, _ in redrawing.redraw(experiment, provenance, 12, **seed)]
        for seed in ({}, {"seed": 0}, {"seed": 1})
    )
    assert found == first != second and len(found) == 12
