"""A drafter job that keeps a checkpoint after every step and fails before step 2; one of several processes."""

from __future__ import annotations

import sys
from dataclasses import replace

from lantern.io import read_json
from lantern_pipeline.training import drafter_job
from lantern_pipeline.training.distributed import report_errors
from lantern_pipeline.training.drafter import DrafterTrainer
from lantern_pipeline.training.loop import run_training


class InterruptedTrainer(DrafterTrainer):
    def step(self, i):
        if i == 2:
            raise OSError("the power failed")
        return super().step(i)


def run_and_save(*arguments, pace, **options):
    return run_training(*arguments, pace=replace(pace, checkpoint_every_s=0.0), **options)


if __name__ == "__main__":
    drafter_job.DrafterTrainer = InterruptedTrainer
    drafter_job.run_training = run_and_save
    with report_errors():
        drafter_job.train_drafter(drafter_job.DrafterJob(**read_json(sys.argv[1])))
