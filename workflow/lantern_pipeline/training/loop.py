"""Training loop of all models: it runs a trainer, shows progress, writes checkpoints and resumes from them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

import torch
from tqdm import tqdm

from lantern.io import DamagedFileError, atomic_path
from lantern.models.stored import Model
from lantern_models.checkpoints.weight_files import load_pickle
from lantern_pipeline.training.optimisers import Optimiser

log = logging.getLogger(__name__)


class Trainer(Generic[Model]):
    """Base class of trainers, whose steps `run_training` calls.

    The data of step i must depend only on the seed and i. Then an interrupted and resumed training gives the same model
    as an uninterrupted one.
    """

    model: Model
    optimiser: Optimiser

    def step(self, i: int) -> dict[str, float]:
        """Run optimiser step i, and return the values to log."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, object]:
        """Return the state of the trainer, from which training can be resumed.

        Subclasses add everything else on which the next step depends.
        """
        return {"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned. It is called before the first step."""
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])


@dataclass(frozen=True)
class Pace:
    """Intervals, in steps or seconds, at which a training writes logs and checkpoints, and validates the model."""

    log_every: int = 50
    checkpoint_every_s: float = 30.0
    validate_every: int | None = None  # None: only after the last step


def run_training(
    trainer: Trainer,
    num_steps: int,
    *,
    name: str,
    checkpoint: Path | None = None,
    pace: Pace = Pace(),
    validate: Callable[[], dict[str, float]] | None = None,
) -> list[dict[str, float]]:
    """Run a trainer to its last step, resuming from a checkpoint if there is one.

    Args:
        checkpoint: file for resuming, or None. It is not deleted at the end; the caller does this.
        validate: function that measures the model and returns values to log, by name.

    Returns:
        One dict for each step that was logged or validated, including the last step. It has the logged values, "step",
        and "elapsed_s", the seconds of training so far without interruptions.
    """
    first, elapsed_s, history = _resume(trainer, checkpoint)
    last_saved = time.monotonic()
    # As if the training had begun this long ago without an interruption.
    begun = last_saved - elapsed_s
    # disable=None shows the bar in terminals only. Log files get one line per `log_every` steps.
    bar = tqdm(range(first, num_steps), initial=first, total=num_steps, desc=name, disable=None, mininterval=1.0)
    for i in bar:
        values = trainer.step(i)
        is_last = i == num_steps - 1
        is_validated = validate is not None and (
            is_last or (pace.validate_every and (i + 1) % pace.validate_every == 0)
        )
        if validate is not None and is_validated:
            values |= validate()
        # In every step, because weights with nan would otherwise be saved in a checkpoint.
        _check_finite(values, name, i)
        if is_validated or is_last or i % pace.log_every == 0:
            history.append({"step": i, "elapsed_s": round(time.monotonic() - begun, 3), **values})
            shown = " ".join(f"{key} {value:.4g}" for key, value in values.items())
            bar.set_postfix_str(shown)
            log.info("%s step %d/%d %s", name, i, num_steps, shown)
        if checkpoint is not None and time.monotonic() - last_saved > pace.checkpoint_every_s:
            state = {"next_step": i + 1, "elapsed_s": time.monotonic() - begun, "history": history}
            _save(trainer, checkpoint, state)
            last_saved = time.monotonic()
    return history


def _resume(trainer: Trainer, checkpoint: Path | None) -> tuple[int, float, list[dict[str, float]]]:
    """Load the checkpoint, if any, into the trainer. Return (next step, seconds so far, values logged so far)."""
    if checkpoint is None or not checkpoint.exists():
        return 0, 0.0, []
    try:
        saved = load_pickle(checkpoint)
    except ValueError as error:
        raise DamagedFileError(checkpoint, f"is no training checkpoint that can be read ({error})") from error
    if not isinstance(saved, dict):
        raise DamagedFileError(checkpoint, "is no training checkpoint")
    trainer.load_state_dict(saved["trainer"])
    log.info("resumed at step %d from %s", saved["next_step"], checkpoint)
    return saved["next_step"], saved["elapsed_s"], saved["history"]


def _save(trainer: Trainer, checkpoint: Path, state: Mapping[str, object]) -> None:
    # A training that is killed here keeps its previous checkpoint.
    with atomic_path(checkpoint) as temporary:
        torch.save({"trainer": trainer.state_dict(), **state}, temporary)


def _check_finite(values: dict[str, float], name: str, i: int) -> None:
    for key, value in values.items():
        if not math.isfinite(value):
            raise FloatingPointError(
                f"{name}: {key} is {value} at step {i}; lower the learning rate or look at the data"
            )


def step_generator(seed: int, i: int) -> torch.Generator:
    """Return a random generator that depends only on the seed and the number i of the training step."""
    # No two pairs of seed and step share a generator if there are at most 1_000_003 steps.
    return torch.Generator().manual_seed(seed * 1_000_003 + i)


def cosine_rate(i: int, num_steps: int, *, warmup: int, final_share: float = 0.0) -> float:
    """Return the learning-rate factor of step i: linear warm-up to 1, then a cosine down to `final_share`."""
    if i < warmup:
        # Above 0 in step 0, which would otherwise change nothing.
        return (i + 1) / warmup
    progress = (i - warmup) / max(1, num_steps - warmup)
    return final_share + (1 - final_share) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def linear_rate(i: int, num_steps: int, *, warmup: int) -> float:
    """Return the factor as `cosine_rate` does, but with linear decay to 0."""
    if i < warmup:
        return (i + 1) / warmup
    return max(0.0, (num_steps - i) / max(1, num_steps - warmup))
