"""Overlays of further model families, from the fetch to the report, on tiny weights in the published layouts."""

from __future__ import annotations

import io
import json

import pandas as pd
import pytest
import torch
from safetensors.torch import save

from families import (
    LLAMA,
    anole_drafter,
    chameleon_name,
    draw,
    draw_anole,
    draw_emu3_tokenizer,
    draw_janus,
    draw_llama,
    one_row_of_norms,
)
from family_walk import walk
from lantern.checkpoints.native import read_metadata
from lantern.models.vq16 import VQ16, VQ16Config
from lantern.records import load_records
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


@pytest.mark.slow
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


def check_lines(workflow, tmp_path) -> pd.DataFrame:
    """The run's summary, once every line of every image is found to end in its token, the last of 65."""
    for records in (workflow.result("generation")).rglob("*.safetensors"):
        lines = load_records(records).codes.view(-1, 4, 5)
        assert (lines[..., 4] == 64).all() and (lines[..., :4] < 64).all()
    assert (tmp_path / "report.html").stat().st_size > 10_000
    summary = pd.read_csv(tmp_path / "results" / "summary.csv").set_index("method")
    assert summary["nll"].notna().all()
    return summary


@pytest.mark.slow
def test_lumina_mgpt(tmp_path):
    """Anole's weights with one row of norms for all heads; lines end in a token of their own."""
    repositories = anole_repositories(tmp_path)
    repositories["tiny"] = {
        "config.json": repositories["tiny"]["config.json"],
        "model.safetensors": save(one_row_of_norms(draw_anole())),
    }
    repositories["drafts"] = {
        "config.json": repositories["drafts"]["config.json"],
        "model.safetensors": save(one_row_of_norms(anole_drafter())),
    }
    specials = {"<s>": 0, "<racm3:break>": 69, "<reserved08706>": 70, "<reserved08824>": 75}
    path = save_tokenizer(tmp_path / "tokenizer.json", specials, ["a", "red", "blue", "cat", "dog", "bird"])
    repositories["words"] = {"tokenizer/text_tokenizer.json": path.read_bytes()}
    workflow, output = walk(
        tmp_path,
        "lumina_mgpt",
        repositories.pop("tiny"),
        repositories,
        data={"captions": None},
        text={"checkpoint": "words"},
        tokenizer={"checkpoint": "images"},
        target={"size": None, "line_end": 72},
        drafter={"checkpoint": "drafts"},
        methods=[
            {"preset": ["autoregressive", "jacobi", "eagle1", "eagle2", "sjd"]},
            {"preset": "lantern_pp", "residual": "official_lumina", "k": 10, "lambda_": 5},
        ],
        metrics={"hps": False},
    )
    assert not [name for name in planned(output) if name.startswith("train")]
    summary = check_lines(workflow, tmp_path)
    assert set(summary.index) == {"autoregressive", "jacobi", "eagle1", "eagle2", "sjd", "lantern_pp"}
    assert summary.loc["eagle2", "mean_accepted_length"] > 1.3  # it was trained for this target


@pytest.mark.slow
def test_emu3(tmp_path):
    """Fewer heads of keys and values, a negative prompt, lines that end, transformers' image tokenizer; no drafter."""
    state = draw_llama("model.", 112, gain=0.9, kv_dim=32, ffn_hidden=160)
    state |= {"lm_head.weight": draw("lm_head.weight", (112, 64), 1234)}
    config = {"num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 1e6}
    specials = {"<|extra_203|>": 43, "<|image start|>": 46, "<|image token|>": 45}
    words = ["a", "red", "blue", "cat", "dog", "bird", "90", "*"]
    path = save_tokenizer(tmp_path / "tokenizer.json", specials, words, first_word=20)
    workflow, output = walk(
        tmp_path,
        "emu3",
        {"config.json": json.dumps(config).encode(), "model.safetensors": save(state)},
        {
            "images": {"model.safetensors": save(draw_emu3_tokenizer((1, 1, 2)))},
            "words": {"tokenizer.json": path.read_bytes()},
        },
        data={"captions": None, "image_size": 16},
        text={"checkpoint": "words", "max_tokens": 80},
        tokenizer={"checkpoint": "images", "code_dim": 4},
        target={"num_kv_heads": 2, "line_end": 41},
        methods=[{"preset": ["autoregressive", "jacobi"]}, {"preset": "zipar", "window": 2}],
        metrics={"hps": False},
    )
    assert not [name for name in planned(output) if name.startswith("train")]
    config = read_metadata(workflow.result("target/s0/model.safetensors"))["config"]
    assert config["num_kv_heads"] == 2 and len(config["null_ids"]) > 40 and config["line_end"] == 41
    assert set(check_lines(workflow, tmp_path).index) == {"autoregressive", "jacobi", "zipar"}
