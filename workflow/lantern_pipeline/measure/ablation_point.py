"""One point of an ablation. The module does not import torch, since Snakemake imports it while it plans the jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lantern.methods import MethodSpec


@dataclass(frozen=True)
class AblationPoint:
    """Method with sampling settings and a draft model, which is one row of the ablation's table.

    Attributes:
        sampling: config section `sampling` with the values that the point changes, such as top_k. No temperature.
        drafter_steps: number of training steps of the draft model. None for that of the run, or if there is none.
    """

    spec: MethodSpec
    temperature: float
    sampling: dict[str, Any]
    drafter_steps: int | None = None
