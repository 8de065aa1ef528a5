"""Train the image tokenizer, and measure how well it reconstructs held-out images."""

from lantern.io import write_json
from lantern.models.config import pick
from lantern.models.stored import load_model, save_model
from lantern_models.images.shapes import TokenizerConfig
from lantern_pipeline.data.image_sources import make_source
from lantern_pipeline.job.context import job_log, training_checkpoint
from lantern_pipeline.training.loop import run_training
from lantern_pipeline.training.tokenizer import NUM_EVAL, TokenizerTrainer, TokenizerTraining, evaluate_tokenizer
from lantern_pipeline.world.attribute_classifier import AttributeClassifier
from lantern_pipeline.world.worlds import WORLDS

with job_log(snakemake), training_checkpoint(snakemake) as checkpoint:
    params, settings = snakemake.params, snakemake.params.settings
    source = make_source(params.source["data"], params.seed)
    attribute_classifier = load_model(snakemake.input.attribute_classifier, AttributeClassifier)
    trainer = TokenizerTrainer(
        source,
        attribute_classifier,
        pick(TokenizerConfig, settings, image_size=source.image_size),
        pick(TokenizerTraining, settings),
        params.seed,
    )
    history = run_training(trainer, settings["num_steps"], name="tokenizer", checkpoint=checkpoint)
    model, indices = trainer.model.eval(), range(NUM_EVAL)
    # Captions of a folder name no known attributes, so the classifier serves the perceptual loss only.
    reader = attribute_classifier if params.source["data"]["source"] in WORLDS else None
    report = evaluate_tokenizer(model, reader, source.images("val", indices), source.captions("val", indices))
    save_model(snakemake.output.model, model, report)
    write_json(snakemake.output.report, {**report, "num_eval": len(indices), "history": history})
