"""One point of an ablation. The module does not import torch, since Snakemake imports it while it plans the jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lantern.methods import MethodSpec


@dataclass(frozen=True)
class AblationPoint:
    """Method, and the sampling settings and draft model with which an ablation measures it: one row of its table.

    Attributes:
        sampling: config section `sampling` as a dict. The point may have changed some of its values, such as top_k.
        drafter_steps: number of training steps of the draft model. None for the draft model of the run.
    """

    spec: MethodSpec
    temperature: float
    sampling: dict[str, Any]
    drafter_steps: int | None = None
