"""A draft model's training as a job of plain values, on one process or on several.

Processes run a job file, whose keys are the fields of `DrafterJob`.
"""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lantern.checkpoints.native import save_model
from lantern.checkpoints.target import load_target
from lantern.io import read_json, write_json
from lantern.models.config import pick
from lantern.models.draft import DraftModel
from lantern.sampling import SamplingConfig
from lantern_pipeline.data.code_dataset import CodeDataset, load_codes
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.runtime.job import resolve_device
from lantern_pipeline.training.distributed import make_accelerator, report_errors, run_processes
from lantern_pipeline.training.drafter import DrafterTrainer
from lantern_pipeline.training.drafter_loss import DrafterValidation
from lantern_pipeline.training.drafter_recipe import DrafterTraining
from lantern_pipeline.training.loop import Pace, run_training

REPORTED = ("loss", "overlap", "val_")


@dataclass(frozen=True)
class DrafterJob:
    """What to train from what; JSON values only. Files, sections and keys of the config, and two seeds."""

    target: str
    codes: list[str]
    captions: str  # prompt file
    features: list[str]  # stored text features; empty where text.encoder stores none
    val_codes: list[str]
    val_captions: str
    val_features: list[str]
    settings: dict[str, Any]  # section drafter
    sampling: dict[str, Any]
    text: dict[str, Any]
    source: str
    training_seed: int  # of initial weights, order and noise
    device: str
    model: str  # written, as is the report of last and logged values
    report: str
    checkpoint: str  # from which an interrupted training goes on


def launch(job: DrafterJob, num_processes: int) -> None:
    """Trains a draft model here, or on several processes of this machine; their job file lies beside the checkpoint
    while they run, and stays where they were interrupted.
    """
    path = Path(job.checkpoint).with_suffix(".json")
    for stale in path.parent.glob(".checkpoint-*.json"):
        stale.unlink()
    if num_processes == 1:
        train_drafter(job)
        return
    write_json(path, asdict(job))
    run_processes("lantern_pipeline.training.drafter_job", [str(path)], num_processes, resolve_device(job.device))
    path.unlink()


def train_drafter(job: DrafterJob) -> None:
    """Trains and validates a draft model on the processes that are running; the first one writes model and report."""
    accelerator = make_accelerator(resolve_device(job.device))
    target = load_target(Path(job.target))
    dataset = _load(job, job.codes, job.captions, job.features)
    held_out = _load(job, job.val_codes, job.val_captions, job.val_features)
    sampling = pick(SamplingConfig, job.sampling)
    recipe = pick(DrafterTraining, job.settings, cfg_scale=sampling.cfg_scale).resolve(len(dataset))
    draft = DraftModel.from_target(target, job.training_seed)
    trainer = DrafterTrainer(draft, target, dataset, recipe, job.training_seed, accelerator)
    history = run_training(
        trainer,
        recipe.num_steps,
        name="drafter",
        checkpoint=Path(job.checkpoint),
        pace=Pace(validate_every=recipe.eval_every),
        validate=DrafterValidation(trainer.loss, trainer.target, held_out, sampling, accelerator),
    )
    if accelerator.is_main_process:
        report = {name: value for name, value in history[-1].items() if name.startswith(REPORTED)}
        save_model(Path(job.model), draft, report)
        report |= {"num_steps": recipe.num_steps, "num_processes": accelerator.num_processes}
        write_json(job.report, {**report, "history": history})
    accelerator.wait_for_everyone()
    accelerator.end_training()


def _load(job: DrafterJob, codes: list[str], captions: str, features: list[str]) -> CodeDataset:
    return load_codes(codes, captions, make_text_encoder(job.text, job.source, features))


def main(path: str) -> None:
    """Runs a job file as one of the processes that `torch.distributed.run` has started."""
    level = logging.WARNING if int(os.environ.get("RANK", 0)) else logging.INFO
    logging.basicConfig(stream=sys.stdout, level=level, format="%(asctime)s %(message)s")
    job = DrafterJob(**read_json(path))
    with report_errors():
        train_drafter(job)


if __name__ == "__main__":
    main(*sys.argv[1:])
