"""One point of an ablation.

Snakemake imports this module while it plans. It therefore imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lantern.methods import MethodSpec


@dataclass(frozen=True)
class AblationPoint:
    """A method with changed sampling or draft model: one row of an ablation's table.

    Attributes:
        spec: the method.
        temperature: sampling temperature.
        sampling: config section `sampling` with the changes of this point.
        drafter_steps: number of training steps of the draft model, or None for the draft model of the run.
    """

    spec: MethodSpec
    temperature: float
    sampling: dict[str, Any]
    drafter_steps: int | None = None
