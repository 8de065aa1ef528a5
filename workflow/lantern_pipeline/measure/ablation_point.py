"""One point of an ablation: a method, the sampling settings and the draft model with which it is measured.

Snakemake imports this module while it plans the jobs, so the module does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lantern.methods import MethodSpec


@dataclass(frozen=True)
class AblationPoint:
    """A method with changed sampling settings or another draft model, which is one row in the table of an ablation.

    Attributes:
        spec: the method.
        temperature: sampling temperature.
        sampling: config section `sampling`, in which this point has changed some values, for example top_k.
        drafter_steps: number of training steps of the draft model. None for the draft model of the run.
    """

    spec: MethodSpec
    temperature: float
    sampling: dict[str, Any]
    drafter_steps: int | None = None
