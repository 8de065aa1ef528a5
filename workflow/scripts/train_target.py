"""Train the target on the codes and captions of the training images."""

import torch

from lantern.io import write_json
from lantern.models.config import pick
from lantern.models.stored import save_model
from lantern.models.target import TargetConfig, TargetModel
from lantern_models.text.encoders import describe_features
from lantern_pipeline.data.code_dataset import load_codes
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.job.context import execution_of, job_log, training_checkpoint
from lantern_pipeline.schema.run_config import TextSettings
from lantern_pipeline.training.loop import Pace, run_training
from lantern_pipeline.training.target import TargetTrainer, TargetTraining, evaluate_target

EVAL_EVERY = 500  # optimiser steps between two measurements of the cross-entropy

with job_log(snakemake), training_checkpoint(snakemake) as checkpoint:
    params, files, settings = snakemake.params, snakemake.input, snakemake.params.settings
    text = TextSettings(**params.text)
    encoder = make_text_encoder(text, params.source, files.text)
    data = load_codes(files.train, files.captions, encoder)
    held_out = load_codes(files.val, files.val_captions, encoder)
    torch.manual_seed(int(snakemake.wildcards.training_seed))
    model = TargetModel(TargetConfig(**params.sizes)).to(execution_of(snakemake).device)
    trainer = TargetTrainer(model, data, pick(TargetTraining, settings), int(snakemake.wildcards.training_seed))
    # A run with this target checks that its prompts have the same features.
    features = {"text": describe_features(text.encoder)}
    history = run_training(
        trainer,
        settings["num_steps"],
        name="target",
        checkpoint=checkpoint,
        pace=Pace(validate_every=EVAL_EVERY),
        validate=lambda: {"val_cross_entropy": evaluate_target(model, held_out)},
    )
    report = {"val_cross_entropy": history[-1]["val_cross_entropy"], **features}
    save_model(snakemake.output.model, model.eval(), report)
    write_json(snakemake.output.report, {**report, "history": history})
