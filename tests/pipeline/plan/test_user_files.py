"""Tests of files that a run needs on this machine: they are checked before any job, and errors name the key."""

import copy
import subprocess
import sys

import pytest
import torch

from helpers.configs import load_config, typed_config
from helpers.paths import ROOT
from helpers.tiny_fashion import write_fashion
from lantern.io import save_tensors
from lantern_pipeline.data.model_cards import card_of
from lantern_pipeline.fetch.entries import parse_entries
from lantern_pipeline.plan import user_files
from lantern_pipeline.plan.user_files import check_user_files

DEFAULT = load_config([ROOT / "config.yaml"])


def changed(**sections):
    config = copy.deepcopy(DEFAULT)
    for name, section in sections.items():
        config[name] = config[name] | section if isinstance(section, dict) else section
    return config


def check(config, **options):
    checked = typed_config(config)
    check_user_files(checked, card_of(checked), parse_entries(checked.resource_entries), **options)


# Faults of files are tests/pipeline/data/test_prompts.py's.
@pytest.mark.parametrize(
    "name, text, words",
    [
        ("empty.txt", "\n", "empty.txt: the prompt file is empty"),
        ("words.txt", "a red hippopotamus on grass\n", "'hippopotamus'"),
        ("long.txt", "red " * 17, "17 words; between 1 and 16"),
    ],
)
def test_a_prompt_file_that_no_job_could_read_is_one_sentence(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=r"config key prompts\.mine\.file: ") as caught:
        check(changed(prompts={"mine": {"file": str(tmp_path / name)}}))
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_fashion_mnist_is_one_sentence_that_names_its_package(tmp_path):
    config = load_config([ROOT / "config.yaml", ROOT / "experiments" / "fashion.yaml"])
    config["data"]["folder"] = str(tmp_path)
    with pytest.raises(ValueError, match=r"needs the file train-images.* `apt-get install dataset-fashion-mnist`"):
        check(config)
    write_fashion(tmp_path)
    check(config)


def test_prompt_files_that_jobs_read_pass(tmp_path, monkeypatch):
    good, odd = tmp_path / "good.txt", tmp_path / "odd.txt"
    good.write_text("a large red circle on grass\n")
    odd.write_text("a hippopotamus " * 50)
    for entry in ({"file": str(good)}, {"file": "parti_prompts"}, None):
        check(changed(prompts={"mine": entry}))
    check(changed(prompts={"mine": {"file": str(odd)}}, text={"encoder": "t5"}))  # which knows every word
    own = changed(prompts={"mine": {"file": "list"}}, resources={"list": {"path": str(odd)}})
    with pytest.raises(ValueError, match="hippopotamus"):
        check(own)
    check(changed(prompts={"mine": {"file": str(odd), "member": "a.txt"}}))  # nor is a collection read
    classes = changed(prompts={"mine": {"file": str(odd)}}, text={"encoder": "classes"}, target={"checkpoint": None})
    with pytest.raises(ValueError, match=r"config key prompts\.mine\.file: "):
        check(classes)
    monkeypatch.setattr(user_files, "MAX_BYTES", odd.stat().st_size)
    with pytest.raises(ValueError, match="hippopotamus"):
        check(own)
    monkeypatch.setattr(user_files, "MAX_BYTES", odd.stat().st_size - 1)  # a large file is left to its job
    check(own)


def test_ten_megabytes_are_read_at_once_and_no_more(tmp_path):
    blank = tmp_path / "blank.txt"
    config = changed(prompts={"mine": {"file": str(blank)}})
    blank.write_bytes(b" " * 10_000_000)
    with pytest.raises(ValueError, match="the prompt file is empty"):
        check(config)
    blank.write_bytes(b" " * 10_000_001)
    check(config)


def test_a_folder_of_images_must_be_there(tmp_path):
    (tmp_path / "file.txt").write_text("")
    for folder in ("nowhere", "file.txt"):
        with pytest.raises(
            ValueError, match=rf"key data\.folder: .*{folder} is not a folder; give one that holds images"
        ):
            check(changed(data={"source": "folder", "folder": str(tmp_path / folder)}))
    check(changed(data={"source": "folder", "folder": str(tmp_path)}))


@pytest.mark.parametrize(
    "key, found, file",
    [
        ("data.image_size", 48, "tokenizer"),
        ("tokenizer.codebook_size", 1024, "tokenizer"),
        ("target.num_layers", 16, "target"),
        ("text.max_tokens", 16, "target"),
    ],
)
def test_weights_of_other_sizes_are_refused_before_any_job(monkeypatch, key, found, file):
    monkeypatch.chdir(ROOT)
    check(DEFAULT)
    section, _, name = key.partition(".")
    with pytest.raises(ValueError, match=rf"config key {key} must be {found} .*embedded/{file}.*, got {2 * found}; "):
        check(changed(**{section: {name: 2 * found}}))


def test_the_shape_of_weights_is_compared_with_the_config(tmp_path):
    config = load_config([ROOT / "config.yaml", ROOT / "experiments" / "glm_image.yaml"])
    for section, sizes in {
        "tokenizer": {"grid": [36, 24], "codebook_size": 16384},
        "target": {"grid": 36, "columns": 24, "dim": 4096},
    }.items():
        file = tmp_path / f"{section}.safetensors"
        save_tensors(file, {"weight": torch.zeros(1)}, {"config": sizes})
        config[section]["checkpoint"] = str(file)
        check(config)
        turned = copy.deepcopy(config)
        turned["tokenizer"]["grid"], turned["data"]["image_size"] = [24, 36], [768, 1152]
        with pytest.raises(ValueError, match=r"tokenizer\.grid must be \[36, 24\] with the weights .*got \[24, 36\]"):
            check(turned)


def test_weights_that_the_run_does_not_use_or_that_are_no_file_of_ours_are_left_alone(tmp_path):
    (tmp_path / "damaged.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0" + b"no json!")
    check(changed(tokenizer={"checkpoint": str(tmp_path / "damaged.safetensors")}))  # its job reports the fault
    metrics = {"fidelity": None, "clip": None, "prompt_accuracy": False}
    checkpoints = {name: {"checkpoint": None} for name in ("tokenizer", "target")}
    with pytest.raises(ValueError, match=r"data\.image_size must be 48 with .*attribute_classifier"):
        check(changed(data={"image_size": 64}, **checkpoints))
    checkpoints["tokenizer"] = {"checkpoint": "llamagen_tokenizer"}
    check(changed(data={"image_size": 64}, metrics=metrics, **checkpoints))


def test_a_gpu_is_missed_before_any_job_where_jobs_run_on_this_machine(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(user_files, "has_gpu", lambda: False)
    with pytest.raises(ValueError, match=r"config key device must be auto or cpu on this machine, got 'cuda'"):
        check(changed(device="cuda"))
    check(changed(device="cuda"), is_local=False)  # a cluster's jobs run elsewhere
    check(changed(device="auto"))
    monkeypatch.setattr(user_files, "has_gpu", lambda: True)
    check(changed(device="cuda"))


def test_without_prompt_files_no_torch_is_imported():
    command = """
import sys
from lantern_pipeline.plan.validate import check_keys, load_yaml
from lantern_pipeline.plan.user_files import check_user_files
from lantern_pipeline.data.model_cards import card_of
config = check_keys(load_yaml("config.yaml") | load_yaml("workflow/resources.yaml"))
check_user_files(config, card_of(config), {})
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", command], cwd=ROOT).returncode == 0
