"""Fixtures that several test files of the core share."""

from __future__ import annotations

import pytest
import torch

from helpers.captured_steps import Tape
from lantern import sampling, stepping


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
