"""Published checkpoints, from a stand-in hub to the report: tiny models in the published layouts."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys

import pandas as pd
import pytest
import torch
import yaml
from safetensors.torch import load_file, save

from hub_server import HubServer
from lantern.config import load_yaml
from lantern.models.vq16 import VQ16, VQ16Config
from published_stand_ins import TINY_CLIP, tiny_clip
from tiny_run import ROOT, Workflow, planned
from tiny_t5 import save_t5

REFERENCE = ROOT / "tests" / "data" / "reference"
CAPTIONS = ["a red cat on the grass", "the blue dog", "a dog on a cat", "a red dog"]
NO_ABLATIONS = dict.fromkeys(load_yaml(ROOT / "config.yaml")["ablations"]["grids"])


def pickled(value) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def fill_hub(hub: HubServer, t5) -> dict[str, dict]:
    """Puts the files on the stand-in hub; returns the config section `resources`."""
    save_t5(t5, dim=24)
    torch.manual_seed(0)
    tokenizer = VQ16(VQ16Config(4, 64, 8, 32, (1, 1, 1, 1, 1), 1, 32)).state_dict()
    tokenizer["quantize.codebook_used"] = torch.zeros(65536)
    drafter_config = json.loads((REFERENCE / "config.json").read_text())["drafter_config"]
    repositories = {
        "llamagen": {
            "t2i.pt": pickled({"model": load_file(REFERENCE / "target_llamagen.safetensors")}),
            "vq.pt": pickled({"model": tokenizer}),
        },
        "drafter": {
            "config.json": json.dumps(drafter_config).encode(),
            "pytorch_model.bin": pickled(load_file(REFERENCE / "drafter.safetensors")),
        },
        "t5": {path.name: path.read_bytes() for path in t5.iterdir()},
        "clip": {"open_clip_model.safetensors": save(tiny_clip().state_dict())},
    }
    entries = {}
    for name, files in repositories.items():
        commit = hub.add_repository(f"someone/{name}", files)
        entries[name] = {"repo": f"someone/{name}", "revision": commit, "files": dict.fromkeys(files)}
    tokenizer = {**entries["llamagen"], "files": {"vq.pt": None}}
    target = {**entries.pop("llamagen"), "files": {"t2i.pt": None}}
    captions = hub.add("captions.json", json.dumps(CAPTIONS).encode())
    captions = {"url": captions, "files": {"captions.json": None}}
    return {"tiny_target": target, "tiny_tokenizer": tokenizer, "tiny_captions": captions, **entries}


def write_overlay(folder, resources: dict) -> None:
    """What a user would write, at the size of the stand-ins."""
    (folder / "clip.json").write_text(json.dumps(TINY_CLIP))
    overlay = {
        "experiment": "tiny",
        "data": {"source": "none", "image_size": 64},
        "resources": resources,
        "prompts": {"seen": None, "unseen": None, "coco": {"file": "tiny_captions", "num": 4}},
        "text": {"encoder": "t5", "checkpoint": "t5", "caption_dim": 24, "max_tokens": 8, "num_shards": 2},
        "tokenizer": {"checkpoint": "tiny_tokenizer", "grid": 4, "codebook_size": 64, "code_dim": 8},
        "target": {"checkpoint": "tiny_target", "dim": 64, "num_layers": 3, "num_heads": 4},
        "drafter": {"checkpoint": "drafter"},
        "codebook": {"neighbours": "l2", "num_neighbours": 20},
        "repeats": {"training_seeds": [0], "noise_seeds": [0]},
        "ablations": {"grids": NO_ABLATIONS},
        "metrics": {
            **{"fidelity": None, "clip": "openai", "prompt_accuracy": False, "headline_prompt_set": "coco"},
            "published": {"clip": "clip", "clip_architecture": "clip.json", "preprocessing": "centre_lanczos_32"},
        },
        "latency": {"prompt_sets": ["coco"]},
    }
    (folder / "published.yaml").write_text(yaml.safe_dump(overlay))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run on published checkpoints, with what it printed, and the hub."""
    folder, hub = tmp_path_factory.mktemp("published"), HubServer()
    write_overlay(folder, fill_hub(hub, tmp_path_factory.mktemp("t5")))
    workflow = Workflow(folder, (folder / "published.yaml",))
    environment = {"HF_ENDPOINT": hub.endpoint, "NO_PROXY": "127.0.0.1,localhost"}
    code, output = workflow.run(env=environment, timeout=400)
    assert code == 0, output + workflow.logs()
    workflow.output, workflow.environment = output, environment
    yield workflow
    hub.close()


def test_everything_is_fetched_and_converted_and_nothing_is_trained(finished):
    jobs = planned(finished.output)
    assert jobs["fetch_resource"] == 6
    assert jobs["convert_target"] == jobs["convert_drafter"] == jobs["convert_tokenizer"] == 1
    assert not [name for name in jobs if name.startswith("train")]
    assert jobs["encode_prompts"] == 2


def test_exact_methods_emit_the_autoregressive_tokens(finished):
    summary = pd.read_csv(finished.folder / "results" / "summary.csv")
    exact = summary[(summary["relaxation"] == "none") & (summary["residual"] == "paper")]
    assert len(exact) >= 3
    assert (exact["tokens_equal_autoregressive"] == 1).all()
    assert (summary["mean_accepted_length"] > 1).any()  # the drafter was trained on this target


def test_what_is_off_is_empty_and_what_is_on_says_its_weights(finished):
    summary = pd.read_csv(finished.folder / "results" / "summary.csv")
    off = ["fid", "kid", "precision", "recall", "prompt_accuracy", "target_cross_entropy"]
    assert summary[off].isna().all(axis=None)
    assert summary["clip_score"].notna().all()
    quality = pd.read_csv(finished.result("quality") / "coco.T1.s0n0.csv")
    assert quality["clip_weights_sha256"].str.fullmatch("[0-9a-f]{64}").all()
    assert quality["prompts_sha256"].nunique() == 1


def test_the_report_is_written(finished):
    report = finished.folder / "report.html"
    code, output = finished.run("--report", str(report))
    assert code == 0, output
    assert "published" in report.read_text()


def test_a_second_run_does_nothing_and_needs_no_network(finished):
    code, output = finished.run(env={"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert code == 0, output
    assert "Nothing to be done" in output


@pytest.mark.parametrize(
    "names, trained",
    [
        (["llamagen_stage1"], []),
        (["llamagen_stage1", "llamagen_stage2"], []),
        (["llamagen_stage1", "llamagen_quick"], []),
        (["llamagen_stage1", "llamagen_quick", "llamagen_drafter"], ["train_drafter"]),
        (["llamagen_stage1", "llamagen_drafter", "llamagen_drafter_captions"], ["train_drafter"]),
    ],
    ids=lambda value: "+".join(value),
)
def test_overlays_plan_their_jobs_without_any_resource(tmp_path, names, trained):
    (tmp_path / "images").mkdir()  # what data.folder of the drafter's overlay names
    configs = [str(ROOT / "config.yaml"), *(str(ROOT / "experiments" / f"{name}.yaml") for name in names)]
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--cores", "1", "-n"]
    result = subprocess.run(
        [*command, "--directory", str(tmp_path), "--configfile", *configs], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stdout + result.stderr
    jobs = planned(result.stdout + result.stderr)
    assert [name for name in jobs if name.startswith("train")] == trained
    assert jobs["convert_target"] == jobs["convert_tokenizer"] == 1
    assert jobs["fetch_resource"] >= 5 and jobs["generate_images"] >= 10
    assert jobs.get("convert_drafter", 0) == (0 if trained else 1)
    assert jobs.get("encode_captions", 0) == (16 if trained else 0)
    assert jobs.get("encode_images", 0) == (8 if names[-1] == "llamagen_drafter" else 0)
    assert jobs.get("sample_codes", 0) == (8 if names[-1] == "llamagen_drafter_captions" else 0)
    assert re.search(r"^total +\d+$", result.stdout + result.stderr, re.M)
