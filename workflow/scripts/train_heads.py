"""Train shift heads on images that the frozen target generated, and measure how often their drafts are accepted."""

from lantern.io import write_json
from lantern.models.config import pick
from lantern.models.stored import save_model
from lantern.sampling import SamplingConfig
from lantern_methods.shift_heads import ShiftHeads
from lantern_models.checkpoints.target import load_target
from lantern_pipeline.data.code_dataset import load_codes
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.job.context import execution_of, job_log, training_checkpoint
from lantern_pipeline.schema.run_config import TextSettings
from lantern_pipeline.training.heads import HeadsTrainer, HeadsTraining, HeadsValidation
from lantern_pipeline.training.loop import run_training

with job_log(snakemake), training_checkpoint(snakemake) as checkpoint:
    params, files, seed = snakemake.params, snakemake.input, int(snakemake.wildcards.training_seed)
    # Filters (top-k, top-p) change the logged overlap only. They are not in params, so a change starts no new training.
    sampling = pick(SamplingConfig, {**snakemake.config["sampling"], "cfg_scale": params.cfg_scale})
    data, held_out = (
        load_codes(codes, captions, make_text_encoder(TextSettings(**params.text), params.source, features))
        for codes, captions, features in (
            (files.codes, files.captions, files.features),
            (files.val_codes, files.val_captions, files.val_features),
        )
    )
    training = pick(HeadsTraining, params.settings, cfg_scale=sampling.cfg_scale)
    target = load_target(files.target, device=execution_of(snakemake).device)
    heads = ShiftHeads.from_target(target, params.settings["num_right"], seed)
    trainer = HeadsTrainer(heads, target, data, training, seed)
    # without `pace`, the heads are validated after the last step only
    history = run_training(
        trainer,
        training.num_steps,
        name="heads",
        checkpoint=checkpoint,
        validate=HeadsValidation(trainer, held_out, sampling),
    )
    report = {name: value for name, value in history[-1].items() if name.startswith(("loss", "val_"))}
    save_model(snakemake.output.model, heads, report)
    write_json(snakemake.output.report, {**report, "num_steps": training.num_steps, "history": history})
