"""Trains the recogniser on scenes of the embedded world, also where the run's images come from a folder."""

from lantern.data import SceneSource
from lantern.io import write_json
from lantern.job import job_log, training_checkpoint
from lantern.models.recogniser import RecogniserConfig, evaluate_recogniser, save_model
from lantern.settings import pick
from lantern.training.loop import run_training
from lantern.training.recogniser import RecogniserTrainer, RecogniserTraining

with job_log(snakemake), training_checkpoint(snakemake) as checkpoint:
    params, settings = snakemake.params, snakemake.params.settings
    source = SceneSource(params.seed, params.data["image_size"], params.data["num_train"])
    trainer = RecogniserTrainer(
        source,
        pick(RecogniserConfig, settings, image_size=source.image_size),
        pick(RecogniserTraining, settings),
        params.seed,
    )
    history = run_training(trainer, settings["num_steps"], name="recogniser", checkpoint=checkpoint)
    model, indices = trainer.model.eval(), range(settings["num_eval"])
    report = {
        split: evaluate_recogniser(model, source.images(split, indices), source.scenes(split, indices))
        for split in ("val", "unseen")
    }
    save_model(snakemake.output.model, model, report)
    write_json(snakemake.output.report, {**report, "num_eval": len(indices), "history": history})
