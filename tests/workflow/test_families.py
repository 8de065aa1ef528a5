"""Overlays of further model families, from the fetch to the report, on tiny weights in the published layouts."""

from __future__ import annotations

import io
import json

import pandas as pd
import pytest
import torch
from safetensors.torch import save

from families import LLAMA, anole_drafter, chameleon_name, draw_anole, draw_janus
from family_walk import walk
from lantern.checkpoints.native import read_metadata
from lantern.models.vq16 import VQ16, VQ16Config
from tiny_run import ROOT, Workflow, planned
from tiny_tokenizers import save_tokenizer


def pickled(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def janus_repository(folder) -> dict[str, bytes]:
    """Janus-Pro's files as the 7B has them: weights of all its models in two pickles, config.json and tokenizer."""
    torch.manual_seed(0)
    tokenizer = VQ16(VQ16Config(4, 64, 8, 32, (1, 1, 1, 1, 1), 1, 32)).state_dict()
    state = {
        **draw_janus(),
        **{f"gen_vision_model.{name}": value for name, value in tokenizer.items()},
        "gen_vision_model.quantize.codebook_used": torch.zeros(65536),
        "vision_model.vision_tower.norm.weight": torch.ones(8),
    }
    state = {name: value.bfloat16() for name, value in state.items()}
    shards = {name: f"pytorch_model-0000{1 + name.startswith('gen_')}-of-00002.bin" for name in state}
    specials = ["<｜begin▁of▁sentence｜>", "<|User|>", "<｜▁pad▁｜>", "<|Assistant|>", "<begin_of_image>"]
    words = ["a", "red", "blue", "cat", "dog", "bird", ":"]
    path = save_tokenizer(folder / "tokenizer.json", {name: i for i, name in enumerate(specials)}, words, first_word=20)
    return {
        "config.json": json.dumps({"language_config": {"num_attention_heads": 4}}).encode(),
        "pytorch_model.bin.index.json": json.dumps({"weight_map": shards}).encode(),
        "tokenizer.json": path.read_bytes(),
        **{
            file: pickled({name: value for name, value in state.items() if shards[name] == file})
            for file in set(shards.values())
        },
    }


@pytest.mark.parametrize(("family", "total", "fetched", "trained"), [("janus_pro", 112, 4, ["train_drafter"])])
def test_overlays_plan_their_jobs_without_any_resource(tmp_path, family, total, fetched, trained):
    """The totals are those of the table in docs/llamagen.md: a change belongs there too."""
    overlay = ROOT / "experiments" / f"{family}.yaml"
    code, output = Workflow(tmp_path, (overlay,), config=()).run("--dry-run", "--quiet", "rules")
    assert code == 0, output
    jobs = planned(output)
    assert [name for name in jobs if name.startswith("train")] == trained
    assert (jobs["fetch_resource"], jobs["total"]) == (fetched, total)
    assert jobs["convert_target"] == jobs["convert_tokenizer"] == 1 and "encode_prompts" not in jobs


@pytest.mark.slow
def test_janus_pro(tmp_path):
    """One repository gives target, image tokenizer and prompts; a drafter is trained on what the target draws."""
    workflow, output = walk(tmp_path, "janus_pro", janus_repository(tmp_path))
    jobs = planned(output)
    assert jobs["fetch_resource"] == 2 and jobs["convert_target"] == jobs["convert_tokenizer"] == 1
    assert jobs["sample_codes"] == jobs["train_drafter"] == 1 and "encode_prompts" not in jobs
    config = read_metadata(workflow.result("target/s0/model.safetensors"))["config"]
    assert config["null_ids"] == [0, 4] and config["null_filler"] == 2 and config["has_mlp_head"]
    assert config["norm_eps"] == 1e-6 and config["num_prompt_ids"] == 96
    summary = pd.read_csv(tmp_path / "results" / "summary.csv")
    assert set(summary["method"]) == {"autoregressive", "jacobi", "eagle1", "lantern"}
    assert (summary["mean_accepted_length"] >= 1).all() and summary["nll"].notna().all()
    assert (tmp_path / "report.html").stat().st_size > 10_000


def anole_repositories(folder) -> dict[str, dict[str, bytes]]:
    """Anole's files in Hugging Face's layout, Chameleon's tokenizers, and the LANTERN authors' drafter."""
    torch.manual_seed(0)
    sizes = VQ16Config(4, 64, 8, 32, (1, 1, 1, 1, 1), 1, 32, has_attention=False, is_normalised=False)
    tokenizer = {chameleon_name(name, 4): value for name, value in VQ16(sizes).state_dict().items()}
    specials = {"<s>": 0, "<racm3:break>": 69, "<reserved08706>": 70}
    path = save_tokenizer(folder / "tokenizer.json", specials, ["a", "red", "blue", "cat", "dog", "bird"])
    state = {name: value.bfloat16() for name, value in draw_anole().items()}
    shards = {name: f"model-0000{1 + ('layers' in name)}-of-00002.safetensors" for name in state}
    return {
        "tiny": {
            "config.json": json.dumps({"num_attention_heads": 4, "rms_norm_eps": 1e-5, "rope_theta": 1e4}).encode(),
            "model.safetensors.index.json": json.dumps({"weight_map": shards}).encode(),
            **{
                file: save({name: value for name, value in state.items() if shards[name] == file})
                for file in set(shards.values())
            },
        },
        "images": {"tokenizer/vqgan.ckpt": pickled({"state_dict": tokenizer | {"loss.scale": torch.ones(1)}})},
        "words": {"tokenizer/text_tokenizer.json": path.read_bytes()},
        "drafts": {
            "config.json": (LLAMA / "anole_drafter.json").read_bytes(),
            "pytorch_model.bin": pickled(anole_drafter()),
        },
    }


def test_anole(tmp_path):
    """Four repositories give all models; the drafter is tried on what the target draws."""
    repositories = anole_repositories(tmp_path)
    workflow, output = walk(
        tmp_path,
        "anole",
        repositories.pop("tiny"),
        repositories,
        data={"captions": None},
        text={"checkpoint": "words"},
        tokenizer={"checkpoint": "images"},
        target={"size": None},
        drafter={"checkpoint": "drafts"},
        methods=[
            {"preset": ["autoregressive", "jacobi", "eagle1", "eagle2"]},
            {"preset": "lantern", "residual": "official", "k": 20, "delta": 0.1},
            {"preset": "lantern_pp", "residual": "official", "k": 10, "lambda_": 5},
        ],
        metrics={"hps": False},
    )
    jobs = planned(output)
    assert jobs["fetch_resource"] == 5 and not [name for name in jobs if name.startswith("train")]
    assert jobs["convert_target"] == jobs["convert_tokenizer"] == jobs["convert_drafter"] == 1
    config = read_metadata(workflow.result("target/s0/model.safetensors"))["config"]
    assert config["null_ids"] == [0, 69] and config["has_qk_norm"] and config["num_prompt_ids"] == 160
    report = json.loads(workflow.result("drafter/s0/report.json").read_text())
    assert report["trained_for"] == "next_token" and report["embedding_copied_from"] == "token_embedding.weight"
    summary = pd.read_csv(tmp_path / "results" / "summary.csv").set_index("method")
    assert set(summary.index) == {"autoregressive", "jacobi", "eagle1", "eagle2", "lantern", "lantern_pp"}
    assert summary.loc["eagle2", "mean_accepted_length"] > 1.3  # it was trained for this target
    assert summary["nll"].notna().all()
    assert (tmp_path / "report.html").stat().st_size > 10_000
