"""Slow tests of llamagen_quick from a mock hub to the report, and of drafter training, on tiny models."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import pandas as pd
import pytest
import torch
import yaml
from safetensors.torch import load_file, save
from typer.testing import CliRunner

from helpers.families import draw_c2i, environment_of, pickled, publish, tiny_vq16
from helpers.hub_server import HubServer
from helpers.paths import ROOT
from helpers.published_stand_ins import TINY_CLIP, tiny_clip
from helpers.tiny_run import Workflow, copy_run, overlays_of, planned
from helpers.tiny_t5 import save_t5
from lantern.records import load_records
from lantern_pipeline.cli import app
from lantern_pipeline.plan.validate import load_yaml

pytestmark = pytest.mark.slow

REFERENCE = ROOT / "tests" / "data" / "reference"
CAPTIONS = [f"a {colour} {animal} on the grass" for colour in ("red", "blue") for animal in ("cat", "dog", "bird")]
CAPTIONS += ["the blue dog", "a dog on a cat", "a red dog", "a bird"]
METHODS = {"autoregressive", "jacobi", "jacobi_50", "eagle1", "eagle2", "coupled", "lantern", "lantern_pp", "proximity"}
# Columns of metrics for which the overlay names no weights.
OFF = ["fid", "kid", "frechet_distance", "kernel_distance", "precision", "recall", "prompt_accuracy"]
OFF += ["target_cross_entropy"]
# 16 tokens of 64 codes, few neighbours.
TINY = {
    "experiment": "tiny",
    "data": {"image_size": 64},
    "tokenizer": {"grid": 4, "codebook_size": 64, "code_dim": 8},
    "target": {"size": None, "dim": 64, "num_layers": 3, "num_heads": 4},
    "codebook": {"num_neighbours": 21},
    "total_variation": {"k": 10},
}


def merged(**sections):
    """Return TINY with more keys in its sections."""
    old = {name: TINY[name] for name in TINY.keys() & sections.keys()}
    return {**TINY, **sections, **{name: {**section, **sections[name]} for name, section in old.items()}}


def repositories(t5) -> dict[str, dict[str, bytes]]:
    save_t5(t5, dim=24)
    drafter_config = json.loads((REFERENCE / "config.json").read_text())["drafter_config"]
    return {
        "t2i": {"t2i.pt": pickled({"model": load_file(REFERENCE / "target_llamagen.safetensors")})},
        "vq": {"vq.pt": pickled({"model": tiny_vq16()})},
        "drafter": {
            "config.json": json.dumps(drafter_config).encode(),
            "pytorch_model.bin": pickled(load_file(REFERENCE / "drafter.safetensors")),
        },
        "t5": {path.name: path.read_bytes() for path in t5.iterdir()},
        "clip": {"open_clip_model.safetensors": save(tiny_clip().state_dict())},
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return a finished run of llamagen_quick on tiny files, its output, and the environment of the hub."""
    folder, hub = tmp_path_factory.mktemp("published"), HubServer()
    (folder / "clip.json").write_text(json.dumps(TINY_CLIP))
    methods = load_yaml(ROOT / "experiments" / "llamagen_quick.yaml")["methods"]
    for entry in methods:
        entry.update({key: value for key, value in (("k", 20), ("delta", 0.1)) if key in entry})
    overlay = merged(
        ablations={"grids": dict.fromkeys(load_yaml(ROOT / "tests" / "workflow" / "tiny.yaml")["ablations"]["grids"])},
        resources=publish(hub, repositories(tmp_path_factory.mktemp("t5")), CAPTIONS),
        repeats={"training_seeds": [0], "noise_seeds": [0]},
        prompts={"coco": {"file": "captions", "num": 10}},
        text={"checkpoint": "t5", "caption_dim": 24, "max_tokens": 8, "num_shards": 2},
        tokenizer={"checkpoint": "vq"},
        target={"checkpoint": "t2i"},
        drafter={"checkpoint": "drafter"},
        methods=methods,
        premise={"ks": None},
        latency={"num_images": 2, "num_warmup": 1, "num_rounds": 1},
        metrics={
            "kid_subset_size": 4,
            "published": {"clip": "clip", "clip_architecture": "clip.json", "preprocessing": "centre_lanczos_32"},
        },
    )
    (folder / "published.yaml").write_text(yaml.safe_dump(overlay))
    workflow = Workflow(folder, (*overlays_of("llamagen_stage1", "llamagen_quick"), folder / "published.yaml"))
    workflow.environment = environment_of(hub)
    code, workflow.output = workflow.run(env=workflow.environment)
    assert code == 0, workflow.output + workflow.logs()
    yield workflow
    hub.close()


def test_the_run_converts_its_models_and_says_what_it_measured(finished):
    jobs = planned(finished.output)
    assert jobs["fetch_resource"] == 6 and not [name for name in jobs if name.startswith("train")]
    assert jobs["convert_target"] == jobs["convert_drafter"] == jobs["convert_tokenizer"] == 1
    assert jobs["encode_prompts"] == 2
    summary = pd.read_csv(finished.result("summary.csv"))
    assert set(summary["method"]) == METHODS and set(summary["dtype"]) == {"bfloat16"}
    assert (summary["tokens_per_forward"] > 1.05).any()  # the drafter was trained on this target
    exact = summary[summary["method"].isin(["coupled", "eagle2"])]
    assert exact["tokens_equal_autoregressive"].notna().all()
    assert not (exact["margin_at_difference"] > 0.2).any()  # nats: tokens part where two candidates are close
    assert summary[OFF].isna().all(axis=None) and summary["clip_score"].notna().all()
    quality = pd.read_csv(finished.result("quality") / "coco.T1.s0n0.csv")
    assert quality["clip_weights_sha256"].str.fullmatch("[0-9a-f]{64}").all()
    assert quality["prompts_sha256"].nunique() == 1
    # Published numbers of this model are next to the measured ones.
    table = pd.read_csv(finished.result("published.csv"), dtype={"arxiv": str})
    same = table[table["is_same_model"]]
    assert set(same["model"]) == {"LlamaGen-XL stage I"} and same["speedup"].notna().any()
    assert "2410.03355" in set(table["arxiv"])
    # The provenance names the published weights by their hashes.
    provenance = json.loads(finished.result("provenance.json").read_text())
    assert set(provenance["resources"]) >= {"t2i", "vq", "captions", "drafter", "t5"}
    files = [entry for files in provenance["resources"].values() for entry in files.values()]
    assert files and all(len(entry["sha256"]) == 64 for entry in files)
    assert str(finished.folder) not in json.dumps(provenance)


def test_a_drafter_is_trained_on_images_that_the_target_draws_from_captions(finished):
    """Both overlays of drafter training on the same run: captions, features, samples, training. Heads share them."""
    tiny = finished.folder / "drafter.yaml"
    captions = {"file": "captions", "member": None, "num": 10}
    drafter = {"checkpoint": None, "num_epochs": 3, "batch_size": 2, "num_eval": 1, "eval_every": 5, "passes": 2}
    data = {"captions": captions, "num_samples": 8, "num_shards": 1}
    overlay = {"experiment": "drafted", "data": data}
    overlay |= {"drafter": drafter, "target": {"num_eval": 1}, "heads": {"num_steps": 3, "batch_size": 2}}
    tiny.write_text(yaml.safe_dump(overlay))
    names = ("llamagen_stage1", "llamagen_quick", "llamagen_drafter", "llamagen_drafter_captions")
    training = Workflow(finished.folder, (*overlays_of(*names), finished.overlays[-1], tiny))
    files = [finished.folder / "results" / "drafted" / name / "s0" / "report.json" for name in ("drafter", "heads")]
    code, output = training.run(*(str(file.relative_to(finished.folder)) for file in files), env=finished.environment)
    assert code == 0, output + training.logs()
    jobs = planned(output)
    assert jobs["encode_captions"] == 2
    assert jobs["sample_codes"] == jobs["train_drafter"] == jobs["train_heads"] == 1
    report, of_heads = (json.loads(file.read_text()) for file in files)
    assert of_heads["num_steps"] == 3 and 0 < of_heads["val_overlap_1"] <= 1
    assert report["num_steps"] == 12 and 0 < report["val_acceptance_1"] <= 1  # 3 epochs of 8 of the 9 training captions
    assert [entry["step"] for entry in report["history"] if "val_loss" in entry] == [4, 9, 11]


def test_results_without_published_models_are_verified_with_the_models_at_hand(finished, tmp_path):
    whole = finished.folder / "results" / "tiny"
    shared = tmp_path / "tiny"
    shutil.copytree(whole, shared)
    (shared / "target" / "s0" / "model.safetensors").unlink()
    alone = CliRunner().invoke(app, ["verify", str(shared), "--images", "1"])
    assert alone.exit_code == 1 and "target/s0/model.safetensors" in alone.output, alone.output
    verified = CliRunner().invoke(app, ["verify", str(shared), "--images", "3", "--models", str(whole)])
    assert verified.exit_code == 0, verified.output
    assert re.search(r"verified: checksums; images generated again: \d", verified.output)


def test_a_second_run_and_the_report_need_no_network(finished):
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    code, output = finished.run(env=nowhere)
    assert code == 0 and "Nothing to be done" in output, output
    report = finished.folder / "report.html"
    code, output = finished.run("--report", str(report), env=nowhere)
    assert code == 0 and "published" in report.read_text(), output


def test_published_weights_are_converted_and_decoded_by_jobs_in_new_pythons(finished, tmp_path):
    run = replace(copy_run(finished, tmp_path / "run", finished.overlays), forks=False)
    names = ["tokenizer/model.safetensors", "generation/eagle2/coco/T1/s0n0/1-of-1.safetensors"]
    expected = load_records(finished.result(names[1])).codes
    for name in names:
        run.result(name).unlink()
    code, output = run.run(*(f"results/tiny/{name}" for name in names), env=finished.environment)
    assert code == 0 and planned(output) == {"convert_tokenizer": 1, "generate_images": 1, "total": 2}, output
    assert torch.equal(load_records(run.result(names[1])).codes, expected)


def test_a_target_for_classes_draws_and_teaches_a_drafter(tmp_path):
    """From the published file to the drafter's report and the records of a method that uses it."""
    torch.save({"model": draw_c2i(ffn_hidden=256)}, tmp_path / "c2i.pt")
    torch.save({"model": tiny_vq16()}, tmp_path / "vq.pt")
    (tmp_path / "classes.txt").write_text("\n".join(map(str, range(10))))
    overlay = merged(
        device="cpu",
        data={"captions": {"file": "classes.txt", "copies": 2}, "num_shards": 1},
        prompts={"imagenet": {"file": "classes.txt", "num": 4, "copies": 2}},
        text={"num_classes": 10},
        tokenizer={"checkpoint": "vq.pt"},
        target={"checkpoint": "c2i.pt", "num_eval": 2},
        drafter={"num_epochs": 2, "batch_size": 4, "num_eval": 2, "eval_every": 4},
        heads={"kind": "state", "num_steps": 3, "batch_size": 2},
        methods=[{"preset": ["autoregressive", "eagle1"]}, {"name": "head", "drafts": "hybrid_head", "tree": "chain3"}],
        generation={"num_shards": 1, "dtype": "float32"},
        metrics={"kid_subset_size": 4, "prc_neighbours": 3},
    )
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(overlay))
    workflow = Workflow(tmp_path, (*overlays_of("llamagen_c2i"), tmp_path / "tiny.yaml"), config=())
    report = workflow.result("drafter/s0/report.json")
    records = workflow.result("generation/eagle1/imagenet/T1/s0n0/1-of-1.safetensors")
    of_head = workflow.result("generation/head/imagenet/T1/s0n0/1-of-1.safetensors")
    code, output = workflow.run(*(path.relative_to(tmp_path).as_posix() for path in (report, records, of_head)))
    assert code == 0, output + workflow.logs()
    assert planned(output)["sample_codes"] == planned(output)["train_state_head"] == 1
    assert len(load_records(of_head)) == 8
    assert 0 < json.loads(report.read_text())["val_acceptance_1"] <= 1
    drawn = load_records(records)
    assert len(drawn) == 8 and len(set(drawn.prompt_ids)) == 8 and drawn.codes.shape == (8, 16)
