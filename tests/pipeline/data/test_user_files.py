"""What the user brings is looked at before any job; whatever is wrong is one sentence that names the key."""

import copy
import subprocess
import sys

import pytest

from conftest import ROOT, load_config
from lantern_pipeline.data import user_files
from lantern_pipeline.data.user_files import check_user_files
from lantern_pipeline.downloads.entries import parse_entries

DEFAULT = load_config([ROOT / "config.yaml"])


def config_of(entry, encoder="words"):
    config = copy.deepcopy(DEFAULT)
    config["prompts"]["mine"] = entry
    config["text"]["encoder"] = encoder
    return config


def check(config):
    check_user_files(config, parse_entries(config["resources"]))


@pytest.mark.parametrize(
    "name, text, words",
    [
        ("empty.txt", "\n", "empty.txt: the prompt file is empty; give at least one prompt"),
        ("words.txt", "a red hippopotamus on grass\n", "holds the unknown word 'hippopotamus'"),
        ("long.txt", "red " * 17, "has 17 words; between 1 and 16 are possible"),
        ("twice.csv", "id,text\n1,a red circle\n1,a blue circle\n", "the id 1 stands for two texts"),
        ("odd.docx", "a red circle\n", "prompt files end in .txt"),
    ],
)
def test_a_prompt_file_that_no_job_could_read_is_one_sentence(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=r"config key prompts\.mine\.file: ") as caught:
        check(config_of({"file": str(tmp_path / name), "num": None}))
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_folder_is_no_prompt_file(tmp_path):
    with pytest.raises(ValueError, match=r"prompts\.mine\.file: prompt file .* is a folder; name the file in it"):
        check(config_of({"file": str(tmp_path)}))


def test_good_files_and_files_to_be_fetched_pass(tmp_path):
    (tmp_path / "mine.txt").write_text("a large red circle on grass\n")
    check(config_of({"file": str(tmp_path / "mine.txt")}))
    check(config_of({"file": "parti_prompts"}))
    check(config_of(None))


def test_t5_knows_every_word(tmp_path):
    (tmp_path / "mine.txt").write_text("a hippopotamus " * 50)
    check(config_of({"file": str(tmp_path / "mine.txt")}, encoder="t5"))


def test_a_resource_that_the_user_has_is_read_too(tmp_path):
    (tmp_path / "mine.txt").write_text("a hippopotamus\n")
    config = config_of({"file": "list"})
    config["resources"]["list"] = {"path": str(tmp_path / "mine.txt")}
    with pytest.raises(ValueError, match="hippopotamus"):
        check(config)


def test_a_large_file_is_left_to_its_job(tmp_path, monkeypatch):
    monkeypatch.setattr(user_files, "MAX_BYTES", 4)
    (tmp_path / "mine.txt").write_text("a hippopotamus\n")
    check(config_of({"file": str(tmp_path / "mine.txt")}))


@pytest.mark.parametrize("folder", ["nowhere", "file.txt"])
def test_a_folder_of_images_must_be_there(tmp_path, folder):
    (tmp_path / "file.txt").write_text("")
    config = copy.deepcopy(DEFAULT)
    config["data"] |= {"source": "folder", "folder": str(tmp_path / folder)}
    with pytest.raises(
        ValueError, match=rf"config key data\.folder: .*{folder} is not a folder; give one of name\.png"
    ):
        check(config)
    config["data"]["folder"] = str(tmp_path)
    check(config)


def test_without_prompt_files_no_torch_is_imported():
    command = """
import sys
from lantern_pipeline.data.user_files import check_user_files
check_user_files({"data": {"source": "scenes"}, "prompts": {"seen": {"split": "seen", "num": 4}}}, {})
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", command], cwd=ROOT).returncode == 0
