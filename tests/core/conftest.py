"""Fixtures of several test files of the core."""

from __future__ import annotations

import pytest
import torch

from helpers.captured_steps import Tape
from lantern import sampling, stepping


def kth_largest(logits: torch.Tensor, k: int) -> torch.Tensor:
    """As on a GPU: a tape would miss what numpy does on a CPU."""
    return logits.topk(k, dim=-1).values[..., -1:]


@pytest.fixture
def tapes(monkeypatch):
    """In the place of CUDA graphs: they know a step's operations and addresses, but none of its Python."""
    tapes = []

    def record(step, state):
        tapes.append(Tape())
        with torch.inference_mode(), tapes[-1]:
            step(state)
        return tapes[-1]

    monkeypatch.setattr(stepping, "capture", record)
    monkeypatch.setattr(sampling, "_kth_largest", kth_largest)
    return tapes
