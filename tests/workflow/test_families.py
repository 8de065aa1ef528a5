"""Overlays of further model families, from a mock hub to the tables, on tiny weights in the published layouts."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import yaml
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
from hub_server import HubServer
from lantern.checkpoints.native import read_metadata
from lantern.models.vq16 import VQ16, VQ16Config
from lantern.records import load_records
from tiny_run import Workflow, overlays_of, planned
from tiny_tokenizers import save_tokenizer

Files = dict[str, dict[str, bytes]]
WORDS = ["a", "red", "blue", "cat", "dog", "bird"]
CAPTIONS = [f"a {colour} {animal}" for colour in ("red", "blue") for animal in ("cat", "dog", "bird")]
# An image of 16 tokens of 64 codes by a target of width 64 and depth 3; few prompts, few methods, short training.
TINY: dict[str, Any] = {
    "experiment": "tiny",
    "device": "cpu",
    "data": {"image_size": 64, "num_shards": 1},
    "prompts": {"coco": {"file": "captions", "num": 4}},
    "text": {"checkpoint": "words", "max_tokens": 24},
    "tokenizer": {"checkpoint": "images", "grid": 4, "codebook_size": 64, "code_dim": 8},
    "target": {"checkpoint": "tiny", "dim": 64, "num_layers": 3, "num_heads": 4, "num_eval": 2},
    "drafter": {"num_epochs": 2, "batch_size": 2, "num_eval": 2, "eval_every": 4, "passes": 2},
    "codebook": {"num_neighbours": 21},
    "generation": {"num_shards": 1, "batch_size": 4},
    "total_variation": {"k": 10, "aggregated": [1, 4], "num_images": 2, "num_tested": 4, "max_nodes": 20},
    "latency": {"num_images": 2, "num_warmup": 1},
    "metrics": {"fidelity": None, "clip": None, "hps": False, "kid_subset_size": 2, "bootstrap_resamples": 20},
    "figures": {"sample_prompts": 2, "dpi": 50},
}


def pickled(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def in_two_files(state: dict[str, torch.Tensor], is_second, ending: str, pack) -> dict[str, bytes]:
    """Weights in two files, with the index that names them, as the hub has large models."""
    stem = "model" if ending == "safetensors" else "pytorch_model"
    shards = {name: f"{stem}-0000{1 + is_second(name)}-of-00002.{ending}" for name in state}
    files = {
        file: pack({name: value for name, value in state.items() if shards[name] == file})
        for file in sorted(set(shards.values()))
    }
    return {f"{stem}.{ending}.index.json": json.dumps({"weight_map": shards}).encode(), **files}


def vocabulary(folder: Path, specials: dict[str, int], words: list[str] = WORDS, **options: int) -> bytes:
    return save_tokenizer(folder / "tokenizer.json", specials, words, **options).read_bytes()


def janus(folder: Path) -> Files:
    """One repository, as the 7B has it: weights of all its models in two pickles, config.json and tokenizer."""
    torch.manual_seed(0)
    tokenizer = VQ16(VQ16Config(4, 64, 8, 32, (1, 1, 1, 1, 1), 1, 32)).state_dict()
    state = {
        **draw_janus(),
        **{f"gen_vision_model.{name}": value for name, value in tokenizer.items()},
        "gen_vision_model.quantize.codebook_used": torch.zeros(65536),
        "vision_model.vision_tower.norm.weight": torch.ones(8),
    }
    specials = ["<｜begin▁of▁sentence｜>", "<|User|>", "<｜▁pad▁｜>", "<|Assistant|>", "<begin_of_image>"]
    state = {name: value.bfloat16() for name, value in state.items()}
    files = in_two_files(state, lambda name: name.startswith("gen_"), "bin", pickled)
    files["config.json"] = json.dumps({"language_config": {"num_attention_heads": 4}}).encode()
    ids = {name: i for i, name in enumerate(specials)}
    return {"tiny": {**files, "tokenizer.json": vocabulary(folder, ids, [*WORDS, ":"], first_word=20)}}


def anole(folder: Path) -> Files:
    """Weights in Hugging Face's layout, Chameleon's tokenizers, and the LANTERN authors' drafter."""
    torch.manual_seed(0)
    sizes = VQ16Config(4, 64, 8, 32, (1, 1, 1, 1, 1), 1, 32, has_attention=False, is_normalised=False)
    tokenizer = {chameleon_name(name, 4): value for name, value in VQ16(sizes).state_dict().items()}
    config = {"num_attention_heads": 4, "rms_norm_eps": 1e-5, "rope_theta": 1e4}
    state = {name: value.bfloat16() for name, value in draw_anole().items()}
    weights = in_two_files(state, lambda name: "layers" in name, "safetensors", save)
    specials = {"<s>": 0, "<racm3:break>": 69, "<reserved08706>": 70, "<reserved08824>": 75}
    return {
        "tiny": {"config.json": json.dumps(config).encode(), **weights},
        "images": {"tokenizer/vqgan.ckpt": pickled({"state_dict": tokenizer | {"loss.scale": torch.ones(1)}})},
        "words": {"tokenizer/text_tokenizer.json": vocabulary(folder, specials)},
        "drafts": {
            "config.json": (LLAMA / "anole_drafter.json").read_bytes(),
            "pytorch_model.bin": pickled(anole_drafter()),
        },
    }


def lumina_mgpt(folder: Path) -> Files:
    """Anole's weights with one row of norms for all heads, each model in one file."""
    files = anole(folder)
    for name, state in (("tiny", draw_anole()), ("drafts", anole_drafter())):
        config = files[name]["config.json"]
        files[name] = {"config.json": config, "model.safetensors": save(one_row_of_norms(state))}
    return files


def emu3(folder: Path) -> Files:
    """Fewer heads of keys and values, and transformers' image tokenizer."""
    state = draw_llama("model.", 112, gain=0.9, kv_dim=32, ffn_hidden=160)
    state |= {"lm_head.weight": draw("lm_head.weight", (112, 64), 1234)}
    config = {"num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 1e6}
    specials = {"<|extra_203|>": 43, "<|image start|>": 46, "<|image token|>": 45}
    return {
        "tiny": {"config.json": json.dumps(config).encode(), "model.safetensors": save(state)},
        "images": {"model.safetensors": save(draw_emu3_tokenizer((1, 1, 2)))},
        "words": {"tokenizer.json": vocabulary(folder, specials, [*WORDS, "90", "*"], first_word=20)},
    }


def merge(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """One config section laid over another, as Snakemake does."""
    both = {key: merge(under[key], over[key]) for key in under.keys() & over.keys() if isinstance(over[key], dict)}
    return {**under, **over, **both}


DRAFTED = {"data": {"captions": None}, "target": {"size": None}, "drafter": {"checkpoint": "drafts"}}
LANTERN = {"preset": "lantern", "residual": "official", "k": 20, "delta": 0.1}
FAMILIES = {
    "janus_pro": {
        "files": janus,
        "data": {"captions": {"file": "captions", "member": None, "draw": False, "num": 6}},
        "text": {"checkpoint": "tiny"},
        "tokenizer": {"checkpoint": "tiny"},
        "methods": [{"preset": ["autoregressive", "jacobi", "eagle1"]}, LANTERN],
    },
    "anole": {
        "files": anole,
        **DRAFTED,
        "methods": [
            {"preset": ["autoregressive", "jacobi", "eagle1", "eagle2"]},
            LANTERN,
            {"preset": "lantern_pp", "residual": "official", "k": 10, "lambda_": 5},
        ],
    },
    "lumina_mgpt": {
        "files": lumina_mgpt,
        **DRAFTED,
        "target": {"size": None, "line_end": 72},
        "methods": [
            {"preset": ["autoregressive", "jacobi", "eagle1", "eagle2", "sjd"]},
            {"preset": "lantern_pp", "residual": "official_lumina", "k": 10, "lambda_": 5},
        ],
    },
    "emu3": {
        "files": emu3,
        "data": {"captions": None, "image_size": 16},
        "text": {"max_tokens": 80},
        "tokenizer": {"code_dim": 4},
        "target": {"num_kv_heads": 2, "line_end": 41},
        "methods": [{"preset": ["autoregressive", "jacobi"]}, {"preset": "zipar", "window": 2}],
    },
}
# What the target's file says afterwards. Anole and Lumina have a drafter of their own, Janus trains one, Emu3 has none.
CONFIGS = {
    "janus_pro": {"null_ids": [0, 4], "null_filler": 2, "has_mlp_head": True, "norm_eps": 1e-6, "num_prompt_ids": 96},
    "anole": {"null_ids": [0, 69], "has_qk_norm": True, "num_prompt_ids": 160},
    "lumina_mgpt": {"has_qk_norm": True, "line_end": 72},
    "emu3": {"num_kv_heads": 2, "line_end": 41},
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_goes_from_its_files_to_the_tables(family, tmp_path):
    """Target, image tokenizer, prompts, drafter, if any, every method and every metric that needs no weights."""
    overlay = merge(TINY, FAMILIES[family])
    repositories = overlay.pop("files")(tmp_path)
    hub = HubServer()
    try:
        captions = {"url": hub.add("captions.json", json.dumps(CAPTIONS).encode()), "files": {"captions.json": None}}
        overlay["resources"] = {"captions": captions}
        for name, files in repositories.items():
            commit = hub.add_repository(f"someone/{name}", files)
            entry = {"repo": f"someone/{name}", "revision": commit, "files": dict.fromkeys(files)}
            overlay["resources"][name] = entry
        (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(overlay))
        workflow = Workflow(tmp_path, (*overlays_of(family), tmp_path / "tiny.yaml"), config=())
        environment = {"HF_ENDPOINT": hub.endpoint, "NO_PROXY": "127.0.0.1,localhost"}
        code, output = workflow.run("results/summary.csv", env=environment)
        assert code == 0, output + workflow.logs()
    finally:
        hub.close()
    check_jobs(planned(output), family, len(repositories))
    check_results(workflow, family)


def check_jobs(jobs, family, num_repositories):
    assert jobs["fetch_resource"] == num_repositories + 1
    assert jobs["convert_target"] == jobs["convert_tokenizer"] == 1 and "encode_prompts" not in jobs
    assert jobs.get("convert_drafter", 0) == (family in ("anole", "lumina_mgpt"))
    assert [name for name in jobs if name.startswith("train")] == ["train_drafter"] * (family == "janus_pro")
    assert jobs.get("sample_codes", 0) == (family == "janus_pro")


def check_results(workflow, family):
    config = read_metadata(workflow.result("target/s0/model.safetensors"))["config"]
    assert CONFIGS[family].items() <= config.items()
    summary = pd.read_csv(workflow.folder / "results" / "summary.csv").set_index("method")
    methods = [entry["preset"] for entry in FAMILIES[family]["methods"]]
    assert set(summary.index) == {name for names in methods for name in ([names] if isinstance(names, str) else names)}
    assert (summary["mean_accepted_length"] >= 1).all() and summary["nll"].notna().all()
    if "drafter" in FAMILIES[family]:
        assert summary.loc["eagle2", "mean_accepted_length"] > 1.3  # it was trained for this target
        report = json.loads(workflow.result("drafter/s0/report.json").read_text())
        assert report["trained_for"] == "next_token" and report["embedding_copied_from"] == "token_embedding.weight"
    if "line_end" in CONFIGS[family]:  # each line of each image ends in its token, the last of 65
        for records in workflow.result("generation").rglob("*.safetensors"):
            lines = load_records(records).codes.view(-1, 4, 5)
            assert (lines[..., 4] == 64).all() and (lines[..., :4] < 64).all()
    if family == "emu3":
        assert len(config["null_ids"]) > 40  # a negative prompt
