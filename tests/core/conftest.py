"""Fixtures of several test files of the core."""

from __future__ import annotations

import pytest
import torch

from helpers.captured_steps import Tape
from lantern import sampling, stepping


@pytest.fixture
def top_k_of_torch(monkeypatch):
    """As on a GPU: neither a tape nor torch.compile sees what numpy does on a CPU."""
    monkeypatch.setattr(sampling, "_kth_largest", lambda logits, k: logits.topk(k, dim=-1).values[..., -1:])


@pytest.fixture
def tapes(monkeypatch, top_k_of_torch):
    """In the place of CUDA graphs: they know a step's operations and addresses, but none of its Python."""
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
