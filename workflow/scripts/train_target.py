"""Trains the target model on the codes and captions of the training images."""

import torch

from lantern.assembly import load_codes, make_text_encoder
from lantern.data import make_source
from lantern.io import write_json
from lantern.job import job_log, resolve_device, training_checkpoint
from lantern.models.target import TargetConfig, TargetModel, save_target
from lantern.settings import pick
from lantern.sizes import resolve_size
from lantern.training.loop import run_training
from lantern.training.target import TargetTrainer, TargetTraining, evaluate_target

with job_log(snakemake), training_checkpoint(snakemake) as checkpoint:
    params, settings = snakemake.params, snakemake.params.settings
    source = make_source(params.source["data"], params.seed)
    encoder = make_text_encoder(params.text, params.source["data"]["source"], params.seed)
    data = {split: load_codes(snakemake.input[split], source, split, encoder) for split in ("train", "val")}
    sizes = {"num_text_tokens": encoder.max_tokens, "caption_dim": encoder.caption_dim, **params.codes}
    torch.manual_seed(params.training_seed)
    model = TargetModel(pick(TargetConfig, resolve_size(settings), **sizes)).to(resolve_device(params.device))
    trainer = TargetTrainer(model, data["train"], pick(TargetTraining, settings), params.training_seed)
    history = run_training(trainer, settings["num_steps"], name="target", checkpoint=checkpoint)
    report = {"val_cross_entropy": evaluate_target(model.eval(), data["val"])}
    save_target(snakemake.output.model, model, report)
    write_json(snakemake.output.report, {**report, "history": history})
