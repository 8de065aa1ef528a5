"""A family's overlay from a stand-in hub to the report, on tiny weights in the published layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from hub_server import HubServer
from tiny_run import ROOT, Workflow

CAPTIONS = [f"a {colour} {animal}" for colour in ("red", "blue") for animal in ("cat", "dog", "bird")]
# An image of 16 tokens of 64 codes by a target of width 64 and depth 3; few prompts, few methods, short training.
TINY: dict[str, Any] = {
    "experiment": "tiny",
    "device": "cpu",
    "data": {
        "image_size": 64,
        "captions": {"file": "captions", "member": None, "draw": False, "num": 6},
        "num_shards": 1,
    },
    "prompts": {"coco": {"file": "captions", "num": 4}},
    "text": {"checkpoint": "tiny", "max_tokens": 24},
    "tokenizer": {"checkpoint": "tiny", "grid": 4, "codebook_size": 64, "code_dim": 8},
    "target": {"checkpoint": "tiny", "dim": 64, "num_layers": 3, "num_heads": 4, "num_eval": 2},
    "drafter": {"num_epochs": 2, "batch_size": 2, "num_eval": 2, "eval_every": 4, "passes": 2},
    "codebook": {"num_neighbours": 21},
    "methods": [
        {"preset": ["autoregressive", "jacobi", "eagle1"]},
        {"preset": "lantern", "residual": "official", "k": 20, "delta": 0.1},
    ],
    "generation": {"num_shards": 1, "batch_size": 4},
    "total_variation": {"k": 10, "aggregated": [1, 4], "num_images": 2, "num_tested": 4, "max_nodes": 20},
    "latency": {"num_images": 2, "num_warmup": 1},
    "metrics": {"fidelity": None, "clip": None, "kid_subset_size": 2, "bootstrap_resamples": 20},
    "figures": {"sample_prompts": 2, "dpi": 50},
}


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """One config section laid over another, as Snakemake does."""
    both = {key: merge(under[key], over[key]) for key in under.keys() & over.keys() if isinstance(over[key], Mapping)}
    return {**under, **over, **both}


def walk(
    folder: Path,
    family: str,
    repository: Mapping[str, bytes],
    others: Mapping[str, Mapping[str, bytes]] = MappingProxyType({}),
    **changes: Any,
) -> tuple[Workflow, str]:
    """Runs experiments/<family>.yaml over a hub that has the family's files, as the resource `tiny` and as `others` by
    name: the finished run, and what it printed.
    """
    hub, entries = HubServer(), {}
    try:
        for name, files in {"tiny": repository, **others}.items():
            commit = hub.add_repository(f"someone/{name}", dict(files))
            entries[name] = {"repo": f"someone/{name}", "revision": commit, "files": dict.fromkeys(files)}
        captions = {"url": hub.add("captions.json", json.dumps(CAPTIONS).encode()), "files": {"captions.json": None}}
        overlay = merge(TINY, {"resources": {**entries, "captions": captions}, **changes})
        (folder / "tiny.yaml").write_text(yaml.safe_dump(overlay))
        overlays = (ROOT / "experiments" / f"{family}.yaml", folder / "tiny.yaml")
        workflow = Workflow(folder, overlays, config=())
        environment = {"HF_ENDPOINT": hub.endpoint, "NO_PROXY": "127.0.0.1,localhost"}
        code, output = workflow.run(env=environment, timeout=900)
        assert code == 0, output + workflow.logs()
        code, printed = workflow.run("--report", str(folder / "report.html"))
        assert code == 0, printed
    finally:
        hub.close()
    return workflow, output
