"""Fixtures that several test files of the core share."""

from __future__ import annotations

import sys

import pytest
import torch

from helpers.captured_steps import Tape
from lantern import sampling, stepping
from lantern.extensions import load_packages
from lantern.registry import ACCEPTANCE, DRAFTS, PRESETS, RESIDUALS
from lantern_pipeline.schema import methods as method_schema


@pytest.fixture
def top_k_of_torch(monkeypatch):
    """Use torch for top-k, as on a GPU.

    Tapes and torch.compile cannot see numpy's operations, which are used on a CPU.
    """
    monkeypatch.setattr(sampling, "_kth_largest", lambda logits, k: logits.topk(k, dim=-1).values[..., -1:])


@pytest.fixture
def tapes(monkeypatch, top_k_of_torch):
    """Replace CUDA graphs by tapes, which record the operations and addresses of a step, but no Python."""
    tapes = []

    def record(step, state, limits):
        found = {}
        for limit in limits:
            state.cache.limit(limit)
            tapes.append(Tape())
            with torch.inference_mode(), tapes[-1]:
                step(state)
            found[limit] = tapes[-1]
        return found

    monkeypatch.setattr(stepping, "capture", record)
    return tapes


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that installs a package of one module, which the entry points name."""
    monkeypatch.syspath_prepend(tmp_path)
    caches = (load_packages, method_schema._models)
    load_packages()  # once in this process, the rows of lantern_methods are declared
    for table in (DRAFTS, RESIDUALS, ACCEPTANCE, PRESETS):
        monkeypatch.setattr(table, "_rows", dict(table._rows))
    for found in caches:
        found.cache_clear()

    def install(name, code):
        (tmp_path / f"{name}.py").write_text(code)
        folder = tmp_path / f"{name}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (folder / "entry_points.txt").write_text(f"[lantern.methods]\n{name} = {name}\n")
        return tmp_path / f"{name}.py"

    yield install
    for found in caches:
        found.cache_clear()
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)
