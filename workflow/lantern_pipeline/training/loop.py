"""The one training loop: runs a trainer step by step, shows progress, writes checkpoints and resumes from them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from tqdm import tqdm

from lantern.checkpoints.pickles import load_pickle
from lantern.io import DamagedFileError, atomic_path

log = logging.getLogger(__name__)


class Trainer(Protocol):
    """What `run_training` drives. The data of step i must be a pure function of (seed, i): then a resumed run equals an
    undisturbed one.
    """

    def step(self, i: int) -> dict[str, float]:
        """Runs optimiser step i; returns what to log."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Model, optimiser and whatever else the next step depends on."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what `state_dict` gave."""
        ...


@dataclass(frozen=True)
class Pace:
    """How often a training run says and keeps something.

    Attributes:
        log_every: steps between log lines.
        checkpoint_every_s: seconds between checkpoints.
        validate_every: steps between validations; None validates after the last step only.
    """

    log_every: int = 50
    checkpoint_every_s: float = 30.0
    validate_every: int | None = None


def run_training(
    trainer: Trainer,
    num_steps: int,
    *,
    name: str,
    checkpoint: Path | None = None,
    pace: Pace = Pace(),
    validate: Callable[[], dict[str, float]] | None = None,
) -> list[dict[str, float]]:
    """Runs a trainer to its last step, resuming from a checkpoint where one is left.

    Several processes of `torch.distributed` call it alike; the first one writes checkpoints and shows progress.

    Args:
        trainer: see `Trainer`.
        num_steps: optimiser steps in all.
        name: what the progress bar and the log lines call it.
        checkpoint: file for the resumable state; removed by the caller's rule once the final weights are written.
        pace: of log lines, checkpoints and validations.
        validate: measures the model after a step; after the last one in any case.

    Returns:
        One dict per logged or validated step, with "step" and "elapsed_s" added.

    Raises:
        FloatingPointError: a value is not finite; names the stage, the step and the value.
    """
    first, history = _resume(trainer, checkpoint)
    is_main = is_main_process()
    begun = last_saved = time.monotonic()
    # The bar is for a person at a terminal; log files get one line per `log_every` steps instead.
    shown_to = None if is_main else True
    bar = tqdm(range(first, num_steps), initial=first, total=num_steps, desc=name, disable=shown_to, mininterval=1.0)
    for i in bar:
        values = trainer.step(i)
        is_last = i == num_steps - 1
        is_validated = validate is not None and (
            is_last or (pace.validate_every and (i + 1) % pace.validate_every == 0)
        )
        if is_validated:
            values |= validate()
        _check_finite(values, name, i)
        if is_validated or is_last or i % pace.log_every == 0:
            history.append({"step": i, "elapsed_s": round(time.monotonic() - begun, 3), **values})
            shown = " ".join(f"{key} {value:.4g}" for key, value in values.items())
            bar.set_postfix_str(shown)
            if is_main:
                log.info("%s step %d/%d %s", name, i, num_steps, shown)
        if is_main and checkpoint is not None and time.monotonic() - last_saved > pace.checkpoint_every_s:
            _save(trainer, checkpoint, i + 1, history)
            last_saved = time.monotonic()
    return history


def is_main_process() -> bool:
    """Whether this is the only process or the first of several: the one that writes."""
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0


def _resume(trainer: Trainer, checkpoint: Path | None) -> tuple[int, list[dict[str, float]]]:
    """Loads the resumable state if there is one; returns (next step, history so far)."""
    if checkpoint is None or not checkpoint.exists():
        return 0, []
    try:
        saved = load_pickle(checkpoint)
    except ValueError as error:
        raise DamagedFileError(checkpoint, f"is no training checkpoint that can be read ({error})") from error
    trainer.load_state_dict(saved["trainer"])
    log.info("resumed at step %d from %s", saved["next_step"], checkpoint)
    return saved["next_step"], saved["history"]


def _save(trainer: Trainer, checkpoint: Path, next_step: int, history: list[dict[str, float]]) -> None:
    with atomic_path(checkpoint) as temporary:
        torch.save({"trainer": trainer.state_dict(), "next_step": next_step, "history": history}, temporary)


def _check_finite(values: dict[str, float], name: str, i: int) -> None:
    for key, value in values.items():
        if not math.isfinite(value):
            raise FloatingPointError(
                f"{name}: {key} is {value} at step {i}; lower the learning rate or look at the data"
            )


def cosine_rate(i: int, num_steps: int, *, warmup: int, final_share: float = 0.0) -> float:
    """Learning-rate factor of step i: linear warm-up, then cosine decay to `final_share`. Dimensionless, in [0, 1]."""
    if i < warmup:
        return (i + 1) / warmup
    progress = (i - warmup) / max(1, num_steps - warmup)
    return final_share + (1 - final_share) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def linear_rate(i: int, num_steps: int, *, warmup: int) -> float:
    """Learning-rate factor of step i: linear warm-up, then a straight line to zero. Dimensionless, in [0, 1]."""
    if i < warmup:
        return (i + 1) / warmup
    return max(0.0, (num_steps - i) / max(1, num_steps - warmup))


def set_learning_rate(optimiser: torch.optim.Optimizer, factor: float) -> None:
    """Sets each group's rate to its `initial_lr` (set on first use) times `factor`."""
    for group in optimiser.param_groups:
        group.setdefault("initial_lr", group["lr"])
        group["lr"] = group["initial_lr"] * factor
