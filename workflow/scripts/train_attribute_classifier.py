"""Train the attribute classifier, which recognises in an image the attributes that captions name."""

from lantern.io import write_json
from lantern.models.config import pick
from lantern.models.stored import save_model
from lantern_pipeline.data.image_sources import make_world_source
from lantern_pipeline.job.context import job_log, training_checkpoint
from lantern_pipeline.training.attribute_classifier import (
    NUM_EVAL,
    AttributeClassifierTrainer,
    AttributeClassifierTraining,
)
from lantern_pipeline.training.loop import run_training
from lantern_pipeline.world.attribute_classifier import AttributeClassifierConfig, evaluate_attribute_classifier

with job_log(snakemake), training_checkpoint(snakemake) as checkpoint:
    params, settings = snakemake.params, snakemake.params.settings
    # Fashion-MNIST if the run is about this dataset, else the shapes dataset, whose attributes are known.
    world, source = make_world_source(params.data, params.seed)
    trainer = AttributeClassifierTrainer(
        source,
        pick(AttributeClassifierConfig, settings, image_size=source.image_size, world=world),
        pick(AttributeClassifierTraining, settings),
        params.seed,
    )
    history = run_training(trainer, settings["num_steps"], name="attribute_classifier", checkpoint=checkpoint)
    model, indices = trainer.model.eval(), range(NUM_EVAL)
    report = {
        split: evaluate_attribute_classifier(model, source.images(split, indices), source.captions(split, indices))
        # "unseen" has combinations of attributes that are in no training image of the target
        for split in ("val", "unseen")
    }
    save_model(snakemake.output.model, model, report)
    write_json(snakemake.output.report, {**report, "num_eval": len(indices), "history": history})
