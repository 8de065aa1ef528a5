"""Train the draft model to predict the frozen target model, and measure how often its drafts would be accepted."""

from lantern.io import write_json
from lantern.models.config import pick
from lantern.models.draft import DraftModel
from lantern.models.stored import save_model
from lantern.sampling import SamplingConfig
from lantern_models.checkpoints.target import load_target
from lantern_pipeline.data.code_dataset import load_codes
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.job.context import execution_of, job_log, training_checkpoint
from lantern_pipeline.schema.run_config import TextSettings
from lantern_pipeline.training.drafter import DrafterTrainer
from lantern_pipeline.training.drafter_loss import DrafterValidation
from lantern_pipeline.training.drafter_recipe import DrafterTraining
from lantern_pipeline.training.loop import Pace, run_training

# beginnings of the names of measurements that report.json has at its top
REPORTED = ("loss", "overlap", "val_")

with job_log(snakemake), training_checkpoint(snakemake) as checkpoint:
    params, files = snakemake.params, snakemake.input
    # Filters (top-k, top-p) change the logged overlap only. They are not in params, so a change starts no new training.
    sampling = pick(SamplingConfig, {**snakemake.config["sampling"], "cfg_scale": params.cfg_scale})
    data, held_out = (
        load_codes(codes, captions, make_text_encoder(TextSettings(**params.text), params.source, features))
        for codes, captions, features in (
            (files.codes, files.captions, files.features),
            (files.val_codes, files.val_captions, files.val_features),
        )
    )
    # `resolve` computes the number of steps from epochs and the number of images
    recipe = pick(DrafterTraining, params.settings, cfg_scale=sampling.cfg_scale).resolve(len(data))
    target = load_target(files.target, device=execution_of(snakemake).device)
    draft = DraftModel.from_target(target, int(snakemake.wildcards.training_seed))
    trainer = DrafterTrainer(draft, target, data, recipe, int(snakemake.wildcards.training_seed))
    history = run_training(
        trainer,
        recipe.num_steps,
        name="drafter",
        checkpoint=checkpoint,
        pace=Pace(validate_every=recipe.eval_every),
        validate=DrafterValidation(trainer.loss, trainer.target, held_out, sampling),
    )
    report = {name: value for name, value in history[-1].items() if name.startswith(REPORTED)}
    save_model(snakemake.output.model, draft, report)
    write_json(snakemake.output.report, {**report, "num_steps": recipe.num_steps, "history": history})
