"""One point of an ablation: a method, and the sampling settings and draft model with which it is measured.

An ablation measures how results change if one setting changes, such as the training steps of the draft model.
Snakemake imports this module while it plans the jobs, so the module does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lantern.methods import MethodSpec


@dataclass(frozen=True)
class AblationPoint:
    """Point of an ablation: a method, and the sampling settings and draft model with which it is measured.

    The table of an ablation has one row per point.

    Attributes:
        spec: the method.
        temperature: sampling temperature.
        sampling: config section `sampling` as a dict. The point may have changed some of its values, such as top_k.
        drafter_steps: number of training steps of the draft model. None for the draft model of the run.
    """

    spec: MethodSpec
    temperature: float
    sampling: dict[str, Any]
    drafter_steps: int | None = None
