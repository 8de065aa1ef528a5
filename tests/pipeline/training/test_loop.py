"""Tests of the training loop: resuming, progress, and numbers that are not finite."""

from __future__ import annotations

from itertools import count

import pytest
import torch

from lantern_pipeline.training.loop import Pace, cosine_rate, linear_rate, run_training


class Counter:
    """Trainer whose state is the sum of the random numbers of its steps."""

    def __init__(self, fails_at: int | None = None, value: float = 1.0) -> None:
        self.total, self.seen = torch.zeros(1), []
        self.fails_at, self.value = fails_at, value

    def step(self, i):
        if i == self.fails_at:
            raise KeyboardInterrupt
        self.seen.append(i)
        self.total += torch.rand(1, generator=torch.Generator().manual_seed(i))
        return {"loss": self.value}

    def state_dict(self):
        return {"total": self.total}

    def load_state_dict(self, state):
        self.total = state["total"]


def test_resumed_training_equals_an_undisturbed_one(tmp_path):
    whole = Counter()
    run_training(whole, 10, name="whole")
    path = tmp_path / "checkpoint.pt"
    with pytest.raises(KeyboardInterrupt):
        run_training(Counter(fails_at=6), 10, name="cut", checkpoint=path, pace=Pace(checkpoint_every_s=0))
    resumed = Counter()
    history = run_training(resumed, 10, name="resumed", checkpoint=path)
    assert resumed.seen == [6, 7, 8, 9]
    assert torch.equal(resumed.total, whole.total)
    assert [entry["step"] for entry in history] == [0, 9]


def test_the_seconds_of_a_training_go_on_where_it_was_interrupted(tmp_path, monkeypatch):
    seconds = count(0, 100)
    monkeypatch.setattr("lantern_pipeline.training.loop.time.monotonic", lambda: float(next(seconds)))
    path = tmp_path / "checkpoint.pt"
    with pytest.raises(KeyboardInterrupt):
        run_training(Counter(fails_at=6), 10, name="cut", checkpoint=path, pace=Pace(checkpoint_every_s=0))
    kept = torch.load(path)["elapsed_s"]
    assert run_training(Counter(), 10, name="resumed", checkpoint=path)[-1]["elapsed_s"] > kept > 500


def test_a_damaged_checkpoint_is_named(tmp_path):
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match=r"checkpoint\.pt is no training checkpoint that can be read .*make it again"):
        run_training(Counter(), 2, name="x", checkpoint=path)
    torch.save([1, 2], path)
    with pytest.raises(ValueError, match=r"checkpoint\.pt is no training checkpoint"):
        run_training(Counter(), 2, name="x", checkpoint=path)


def test_a_loss_that_is_not_finite_stops_with_stage_and_step():
    with pytest.raises(FloatingPointError, match="target: loss is nan at step 0"):
        run_training(Counter(value=float("nan")), 3, name="target")


def test_a_step_between_two_log_lines_is_checked_too():
    class Breaking(Counter):
        def step(self, i):
            return super().step(i) | {"loss": float("inf") if i == 3 else 1.0}

    with pytest.raises(FloatingPointError, match="target: loss is inf at step 3"):
        run_training(Breaking(), 10, name="target")


def test_validation_comes_at_its_interval_and_after_the_last_step():
    seen, trainer = [], Counter()

    def validate():
        seen.append(trainer.seen[-1])
        return {"val_loss": float(len(seen))}

    history = run_training(trainer, 8, name="x", pace=Pace(log_every=5, validate_every=3), validate=validate)
    assert seen == [2, 5, 7]
    assert [(entry["step"], entry.get("val_loss")) for entry in history] == [(0, None), (2, 1), (5, 2), (7, 3)]
    seen.clear()
    run_training(Counter(), 8, name="x", validate=validate)
    assert len(seen) == 1


def test_a_validation_that_is_not_finite_stops_too():
    with pytest.raises(FloatingPointError, match="x: val_loss is nan at step 1"):
        run_training(Counter(), 2, name="x", validate=lambda: {"val_loss": float("nan")})


def test_linear_rate_by_eye():
    rates = [linear_rate(i, 12, warmup=2) for i in (0, 1, 2, 7, 11, 12)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.5, 0.1, 0.0])


def test_cosine_rate_by_eye():
    rates = [cosine_rate(i, 12, warmup=2) for i in (0, 1, 2, 7, 12)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.5, 0.0])
