"""Trains the target model on the codes and captions of the training images."""

from lantern.assembly import make_text_encoder
from lantern.config import pick
from lantern.data import make_source
from lantern.io import load_tensors, write_json
from lantern.job import job_log, resolve_device, training_checkpoint
from lantern.models.target import TargetConfig, TargetModel, save_target
from lantern.training.loop import run_training
from lantern.training.target import TargetTrainer, TargetTraining

with job_log(snakemake), training_checkpoint(snakemake) as checkpoint:
    params, settings = snakemake.params, snakemake.params.settings
