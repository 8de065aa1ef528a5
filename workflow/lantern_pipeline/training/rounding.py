"""Finished models of the embedded world rounded to bfloat16, in which they are published, and what rounding changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lantern.checkpoints.native import load_model
from lantern.io import load_tensors, save_tensors
from lantern.models.config import pick
from lantern.models.draft import DraftModel
from lantern.models.target import TargetModel
from lantern.sampling import SamplingConfig
from lantern_pipeline.data.code_dataset import CodeDataset
from lantern_pipeline.data.image_sources import make_source
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.training.clip import RECIPE, retrieval_accuracy
from lantern_pipeline.training.distributed import make_accelerator
from lantern_pipeline.training.drafter import freeze
from lantern_pipeline.training.drafter_loss import DrafterValidation, DraftLoss
from lantern_pipeline.training.drafter_recipe import DrafterTraining
from lantern_pipeline.training.target import evaluate_target
from lantern_pipeline.training.tokenizer import NUM_EVAL
from lantern_pipeline.world.attribute_classifier import AttributeClassifier, evaluate_attribute_classifier
from lantern_pipeline.world.clip import ClipScorer
from lantern_pipeline.world.tokenizer import evaluate_tokenizer, load_tokenizer


def round_model(source: Path | str, destination: Path | str, more: Mapping[str, Any]) -> None:
    """Writes a model in our own layout with every number of its weights in bfloat16; `more` joins its report."""
    tensors, metadata = load_tensors(source)
    rounded = {name: tensor.bfloat16() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    save_tensors(destination, rounded, {**metadata, **more})


def measure_models(files: Mapping[str, Path | str], config: Mapping[str, Any]) -> dict[str, float]:
    """Measures tokenizer, target, drafter, attribute_classifier and clip on held-out scenes, each with the others of
    `files`: the target's codes are the tokenizer's, the drafter's hidden states the target's.
    """
    source, device = make_source(config["data"], config["seed"]), torch.device("cpu")
    tokenizer = load_tokenizer(files["tokenizer"])
    classifier = load_model(files["attribute_classifier"], AttributeClassifier)
    indices = range(max(NUM_EVAL, config["target"]["num_eval"]))
    images, scenes = source.images("val", indices), source.scenes("val", indices)
    drawn = evaluate_tokenizer(tokenizer, classifier, images, scenes)
    retrieval = retrieval_accuracy(ClipScorer.from_checkpoint(files["clip"]), source, "val", RECIPE["num_eval"])
    held_out = indices[: config["target"]["num_eval"]]
    codes = tokenizer.encode(images[: len(held_out)])
    encoder = make_text_encoder(config["text"], config["data"]["source"])
    dataset = CodeDataset(codes, source.captions("val", held_out), encoder)
    target = load_model(files["target"], TargetModel)
    sampling = pick(SamplingConfig, config["sampling"])
    recipe = pick(DrafterTraining, config["drafter"], cfg_scale=sampling.cfg_scale).resolve(config["data"]["num_train"])
    loss = DraftLoss(load_model(files["drafter"], DraftModel), freeze(target, torch.float32), recipe)
    drafts = DrafterValidation(loss, target, dataset, sampling, make_accelerator(device))()
    return {
        "val_cross_entropy": evaluate_target(target, dataset),
        "val_acceptance_1": drafts["val_acceptance_1"],
        "val_expected_length": drafts["val_expected_length"],
        "psnr_db": drawn["psnr_db"],
        "reconstruction_accuracy": drawn["accuracy"],
        "classifier_accuracy": evaluate_attribute_classifier(classifier, images, scenes)["accuracy"],
        "image_to_text_accuracy": retrieval["image_to_text_accuracy"],
        "text_to_image_accuracy": retrieval["text_to_image_accuracy"],
    }
