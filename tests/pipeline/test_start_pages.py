"""Tests of the lines on the pages for beginners, docs/index.md and docs/one_gpu.md, with tiny weights."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace

import pytest
import torch
import yaml
from safetensors.torch import load_file
from typer.testing import CliRunner

from helpers.families import tiny_vq16
from helpers.paths import DATA, ROOT
from helpers.tiny_t5 import save_t5
from lantern_models import loading
from lantern_models.cards.card import HubFiles, ImageSettings, PromptSettings
from lantern_models.cards.published import CARDS, HUB_FILES
from lantern_pipeline.cli import app
from lantern_pipeline.fetch.entries import parse_entries
from lantern_pipeline.measure.speed import steps
from lantern_pipeline.schema.run_config import ResourceEntry

START, ONE_GPU = ((ROOT / "docs" / name).read_text() for name in ("index.md", "one_gpu.md"))
LLAMAGEN = ONE_GPU.partition("## LlamaGen\n")[2].partition("\n## Janus-Pro")[0]
QUICK = ("--num", "1", "--rounds", "1", "--batch", "1", "--device", "cpu")
# Entry of HUB_FILES -> path on the page.
PATHS = {
    "llamagen_stage1": "weights/t2i_XL_stage1_256.pt",
    "llamagen_tokenizer": "weights/vq_ds16_t2i.pt",
    "flan_t5_xl": "weights/flan-t5-xl",
    "lantern_drafter_stage1": "weights/llamagen_drafter",
}


def commands_of(page: str) -> list[list[str]]:
    """Return the words of each line of a page that calls the command `lantern`."""
    lines = [shlex.split(line) for line in re.findall(r"^lantern .*$", page, re.M)]
    assert lines
    return [words[1:] for words in lines]


@pytest.fixture
def llamagen(tmp_path, monkeypatch):
    """Return a folder with a tiny LlamaGen in the published layouts, at the paths that the page names."""
    folder = tmp_path / "weights"
    card = replace(
        CARDS["llamagen_stage1"],
        prompts=PromptSettings("t5", max_tokens=8, caption_dim=24),
        images=ImageSettings(64, 4, codebook_size=64, code_dim=8),
        target={"dim": 64, "num_layers": 3, "num_heads": 4, "ffn_multiple": 256},
    )
    monkeypatch.setitem(CARDS, "llamagen_stage1", card)
    for name in ("flan_t5_xl", "lantern_drafter_stage1"):
        (tmp_path / PATHS[name]).mkdir(parents=True)
    save_t5(tmp_path / PATHS["flan_t5_xl"], dim=24)
    torch.save(
        {"model": load_file(DATA / "reference" / "target_llamagen.safetensors")}, folder / "t2i_XL_stage1_256.pt"
    )
    torch.save({"model": tiny_vq16()}, folder / "vq_ds16_t2i.pt")
    drafter = tmp_path / PATHS["lantern_drafter_stage1"]
    torch.save(load_file(DATA / "reference" / "drafter.safetensors"), drafter / "pytorch_model.bin")
    config = json.loads((DATA / "reference" / "config.json").read_text())["drafter_config"]
    (drafter / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_each_of_three_paths_has_ten_lines_at_most_and_ends_in_links():
    paths = START.split("\n## ")[1:]
    assert len(paths) == 3
    for path in paths:
        title, *lines = [line for line in path.splitlines() if line.strip("`")]
        assert len(lines) <= 10 and "\nNext: [" in path and lines[-1].endswith(")"), title


def test_the_lines_for_llamagen_draw_images_by_four_methods(llamagen, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", LLAMAGEN, re.DOTALL)
    names = {}
    exec(code.replace('"cuda"', '"cpu"'), names)
    assert names["model"].models.draft is not None and names["model"].models.target.dtype == torch.bfloat16
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(names["methods"])
    assert names["images"].pixels.shape == (2, 64, 64, 3)
    assert {path.stem for path in llamagen.glob("*.png")} == {"autoregressive", "jacobi", "eagle1", "lantern_pp"}


def test_without_a_draft_model_a_warning_says_what_is_missing(llamagen, monkeypatch, caplog):
    (code,) = re.findall(r"```python\n(.*?)prompts = ", LLAMAGEN, re.DOTALL)

    def fail(files: HubFiles) -> None:
        raise FileNotFoundError(2, f"{files.repo} is not in the hub's cache")

    monkeypatch.setattr(loading, "_fetch", fail)
    names = {}
    exec(re.sub(r" +drafter=.*\n", "", code).replace('"cuda"', '"cpu"'), names)
    assert "the drafter of llamagen_stage1 is missing" in caplog.text
    assert names["model"].generate("a red cat", method="jacobi").pixels.std() > 0


def test_files_and_checksums_of_llamagen_are_those_of_its_card():
    for files in CARDS["llamagen_stage1"].files.values():
        assert isinstance(files, HubFiles) and f"`{files.repo}`" in LLAMAGEN
    names = (*PATHS, "llamagen_stage2")
    known = {file: sha256 for name in names for file, sha256 in HUB_FILES[name].files.items() if sha256}
    assert dict(re.findall(r"^([0-9a-f]{64})  (\S+)$", LLAMAGEN, re.M)) == {value: key for key, value in known.items()}
    for name in ("llamagen_stage2", "lantern_drafter_stage2", "lantern_stage1", "lantern_stage2"):
        wanted = f"`{HUB_FILES[name].repo}`" if name.startswith("lantern") else f"`{next(iter(HUB_FILES[name].files))}`"
        assert wanted in LLAMAGEN


def test_the_overlay_replaces_every_download_of_llamagen(llamagen):
    (text,) = re.findall(r"```yaml\n(.*?)```", LLAMAGEN, re.DOTALL)
    entries = yaml.safe_load(text)["resources"]
    assert {name: entry["path"] for name, entry in entries.items()} == PATHS
    files = CARDS["llamagen_stage1"].files.values()
    assert entries.keys() == {part.name for part in files if isinstance(part, HubFiles)}
    found = parse_entries({name: ResourceEntry(**entry) for name, entry in entries.items()})
    assert all((llamagen / entry.path).exists() for entry in found.values() if entry.path is not None)


@pytest.mark.parametrize("words", commands_of(ONE_GPU), ids=lambda words: "-".join(words[:2]))
def test_the_bench_of_a_published_model_runs(words, llamagen, monkeypatch):
    """The tiny LlamaGen takes the place of the hub's and runs one method. All other models have random weights."""
    monkeypatch.setattr(steps, "NUM_STEPS", 1)
    monkeypatch.setattr(steps, "WARM_UP_S", 0)
    monkeypatch.setattr(loading, "_fetch", lambda files: llamagen / PATHS[files.name])
    is_drawn = words[1] == "llamagen_stage1" and "--random-weights" not in words
    fast = ["--methods", "jacobi"] if is_drawn else ["--random-weights", "--tiny"]
    result = CliRunner().invoke(app, [*words, *QUICK, *fast])
    assert result.exit_code == 0 and "\nautoregressive  " in f"\n{result.output}", result.output
    assert ("tokens / forward" in result.output) == is_drawn


@pytest.mark.parametrize("words", commands_of(START), ids=lambda words: "-".join(words[:2]))
def test_the_commands_of_the_first_page_run(words, home):
    library = (ROOT / "docs" / "library.md").read_text()
    (own,) = [code for code in re.findall(r"```python\n(.*?)```", library, re.DOTALL) if "class Halved" in code]
    (home / "halved.py").write_text(own)
    quick = ("--num", "500") if words[0] == "audit" else QUICK
    result = CliRunner().invoke(app, [*words, *quick])
    assert result.exit_code in ((0, 1) if words[0] == "audit" else (0,)), result.output
    assert ("lossless" if words[0] == "audit" else "\nautoregressive  ") in f"\n{result.output}", result.output
