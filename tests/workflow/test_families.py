"""Slow tests of overlays of model families, from a mock hub to the tables, on tiny weights in published layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import transformers.modeling_layers  # noqa: F401 (once, and not in the fork of each job)
import yaml
from safetensors.torch import save
from snakemake.utils import update_config

import lantern
from helpers.families import (
    LLAMA,
    SPECIALS,
    anole_drafter,
    draw_anole,
    draw_emu3,
    draw_emu3_tokenizer,
    draw_janus,
    environment_of,
    pickled,
    publish,
    save_tokenizer,
    settings_of,
    tiny_vq16,
)
from helpers.hub_server import HubServer
from helpers.pages_data import data_of
from helpers.tiny_run import Workflow, overlays_of, planned
from helpers.tiny_transformers import make_tiny
from lantern.models.stored import read_metadata
from lantern.records import load_records
from lantern_models.sizes import shape_of

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
    "total_variation": {"k": 10, "num_images": 2, "num_tested": 4, "max_nodes": 20},
    "latency": {"num_images": 2, "num_warmup": 1, "num_rounds": 1},
    "metrics": {"fidelity": None, "clip": None, "hps": False, "kid_subset_size": 2, "bootstrap_resamples": 20},
    "figures": {"sample_prompts": 2, "dpi": 50},
}


def in_two_files(state: dict[str, torch.Tensor], is_second, ending: str, pack) -> dict[str, bytes]:
    """Write weights in two files with an index, as the hub stores large models."""
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
    """Write one repository, as for the 7B: weights in two files, settings and tokenizer."""
    state = {**draw_janus(), **tiny_vq16(is_janus=True), "model.vision_model.post_layernorm.weight": torch.ones(32)}
    state = {name: value.bfloat16() for name, value in state.items()}
    files = in_two_files(state, lambda name: "vqmodel" in name, "safetensors", save)
    files["config.json"] = settings_of("janus")
    return {"tiny": {**files, "tokenizer.json": vocabulary(folder, SPECIALS["janus"], [*WORDS, ":"], first_word=20)}}


def anole(folder: Path) -> Files:
    """Write weights in the layout of transformers, Chameleon's tokenizers, and the LANTERN authors' drafter."""
    state = {name: value.bfloat16() for name, value in draw_anole().items()}
    tokenizer = tiny_vq16(is_chameleon=True) | {"loss.scale": torch.ones(1)}
    return {
        "tiny": {
            "config.json": settings_of("anole"),
            **in_two_files(state, lambda name: "layers" in name, "safetensors", save),
        },
        "images": {"tokenizer/vqgan.ckpt": pickled({"state_dict": tokenizer})},
        "words": {"tokenizer/text_tokenizer.json": vocabulary(folder, SPECIALS["lumina"])},
        "drafts": {
            "config.json": (LLAMA / "anole_drafter.json").read_bytes(),
            "pytorch_model.bin": pickled(anole_drafter()),
        },
    }


def emu3(folder: Path) -> Files:
    """Write a model with few key/value heads, and the image tokenizer of transformers, in one repository."""
    settings = settings_of("emu3", rms_norm_eps=1e-4, rope_theta=5e5)
    return {
        "tiny": {
            "config.json": settings,
            "model.safetensors": save(draw_emu3() | draw_emu3_tokenizer((1, 1, 2))),
            "tokenizer.json": vocabulary(folder, SPECIALS["emu3"], [*WORDS, "4", "6", "*"], first_word=20),
        }
    }


def glm_image(folder: Path) -> Files:
    """Write the autoregressive model in a folder of a pipeline, and the tokenizer of prompts in another."""
    model, _ = make_tiny("glm_image", num_codes=64)
    model.save_pretrained(folder / "model")
    inner = {f"vision_language_encoder/{file.name}": file.read_bytes() for file in (folder / "model").iterdir()}
    names = {"bos_token": "<bos>", "extra_special_tokens": {"grid_bos_token": "<sop>", "grid_eos_token": "<eop>"}}
    words = vocabulary(folder, SPECIALS["glm_image"], [*WORDS, "6", "4", "2", "1"], first_word=21)
    return {
        "tiny": {
            **inner,
            "processor/tokenizer.json": words,
            "processor/tokenizer_config.json": json.dumps(names).encode(),
        }
    }


ALONE = {name: {"checkpoint": "tiny"} for name in ("text", "tokenizer")}  # all in one repository
DRAFTED = {"data": {"captions": None}, "target": {"size": None}, "drafter": {"checkpoint": "drafts"}}
LANTERN = {"preset": "lantern", "residual": "official", "k": 20, "delta": 0.1}
LANTERN_PP = {"preset": "lantern_pp", "residual": "official", "k": 10, "lambda_": 5}
# For each family: its files, its overlay, and the metadata of the converted target. Anole has a drafter
# of its own, Janus trains one, Emu3 has none. Emu3's images are wide, those of GLM-Image are tall.
FAMILIES = {
    "janus_pro": (
        janus,
        {
            "data": {"captions": {"file": "captions", "member": None, "draw": False, "num": 6}},
            **ALONE,
            "methods": [{"preset": ["autoregressive", "eagle1"]}, LANTERN],
        },
        {"null_ids": [0, 7], "null_filler": 2, "head_width": 64, "norm_eps": 1e-6, "num_prompt_ids": 96},
    ),
    "anole": (
        anole,
        {**DRAFTED, "methods": [{"preset": ["autoregressive", "eagle2"]}, LANTERN_PP]},
        {"null_ids": [0, 69], "has_qk_norm": True, "num_prompt_ids": 160},
    ),
    "emu3": (
        emu3,
        {
            "data": {"captions": None, "image_size": [16, 24]},
            "text": {"checkpoint": "tiny", "max_tokens": 80},
            "tokenizer": {"checkpoint": "tiny", "grid": [4, 6], "code_dim": 4},
            "target": {"num_kv_heads": 2, "line_end": 41},
            "methods": [{"preset": ["autoregressive"]}, {"preset": "zipar", "window": 2}],
        },
        {"grid": 4, "columns": 6, "num_kv_heads": 2, "line_end": 41, "norm_eps": 1e-4, "rope_base": 5e5},
    ),
    "glm_image": (
        glm_image,
        {
            "data": {"captions": None, "image_size": [192, 128]},
            "text": {"checkpoint": "tiny"},
            "tokenizer": {"checkpoint": "tiny", "grid": [6, 4]},
            "target": {"num_kv_heads": 2, "small_grid": 2, "num_layers": 2},
            "methods": [
                {"preset": ["autoregressive"]},
                {"preset": "proximity", "drafts": "jacobi", "tree": "chain3", "k": 10},
            ],
            "metrics": {"headline_temperature": 1.0},
        },
        {"grid": 6, "columns": 4, "small_grid": 2, "small_columns": 1, "uses_grid_rope": True, "line_end": None},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_goes_from_its_files_to_the_tables(family, tmp_path):
    """Runs target, image tokenizer, prompts, drafter if any, every method, and all metrics without weights."""
    write_files, changes, expected = FAMILIES[family]
    hub, repositories = HubServer(), write_files(tmp_path)
    overlay = json.loads(json.dumps(TINY))  # a copy
    update_config(overlay, changes | {"resources": publish(hub, repositories, captions=CAPTIONS)})
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(overlay))
    workflow = Workflow(tmp_path, (*overlays_of(family), tmp_path / "tiny.yaml"), config=())
    targets = [f"results/tiny/{name}" for name in ("summary.csv", "card.json", "race.html")]
    code, output = workflow.run(*targets, env=environment_of(hub))
    hub.close()
    assert code == 0, output + workflow.logs()

    jobs = planned(output)
    assert jobs["fetch_resource"] == len(repositories) + 1
    assert jobs["convert_target"] == jobs["convert_tokenizer"] == 1 and "encode_prompts" not in jobs
    assert jobs.get("convert_drafter", 0) == ("drafts" in repositories)
    assert [name for name in jobs if name.startswith("train")] == ["train_drafter"] * (family == "janus_pro")
    assert jobs.get("sample_codes", 0) == (family == "janus_pro")

    config = read_metadata(workflow.result("target/s0/model.safetensors"))["config"]
    assert {name: config[name] for name in expected} == expected
    assert len(config["null_ids"]) > 20 or family != "emu3"  # a negative prompt
    summary = pd.read_csv(workflow.result("summary.csv")).set_index("method")
    presets = [entry["preset"] for entry in changes["methods"]]
    assert {*summary.index} == {*presets[0], *presets[1:]}
    assert (summary["tokens_per_forward"] >= 1).all() and summary["nll"].notna().all()
    if "drafts" in repositories:
        assert summary.loc["eagle2", "tokens_per_forward"] > 1.3  # it was trained for this target
        report = json.loads(workflow.result("drafter/s0/report.json").read_text())
        assert report["embedding_copied_from"] == "token_embedding.weight"
    model = lantern.load(workflow.result(""))  # by its card
    assert model.models.target.config == type(model.models.target.config)(**config)
    found = [model.generate("a red cat", method) for method in ("autoregressive", "jacobi")]
    assert torch.equal(found[0].codes, found[1].codes)
    assert (model.models.draft is not None) == ({"eagle1", "eagle2"} & {*summary.index} != set())
    assert found[0].pixels.shape[1:3] == shape_of(overlay["data"]["image_size"])
    height, width = shape_of(overlay["tokenizer"]["grid"])
    page = data_of(workflow.result("race.html").read_text())
    assert (page["lines"], page["columns"], page["first"]) == (height, width, 2 * ("small_grid" in expected))

    if expected.get("line_end"):  # each line of each image ends in its token, the last of 65
        for records in workflow.result("generation").rglob("*.safetensors"):
            lines = load_records(records).codes.view(-1, height, width + 1)
            assert (lines[..., width] == 64).all() and (lines[..., :width] < 64).all()
