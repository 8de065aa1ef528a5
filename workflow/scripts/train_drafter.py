"""Trains the draft model against the frozen target."""

from lantern.assembly import load_codes, make_text_encoder
from lantern.io import write_json
from lantern.job import job_log, resolve_device, training_checkpoint
from lantern.models.draft import save_draft
from lantern.models.target import load_target
from lantern.settings import pick
from lantern.training.drafter import DrafterTrainer, DrafterTraining, new_draft_model
from lantern.training.loop import run_training

with job_log(snakemake), training_checkpoint(snakemake) as checkpoint:
    params, files, settings = snakemake.params, snakemake.input, snakemake.params.settings
    encoder = make_text_encoder(params.text, params.source, params.seed, files.text)
    target = load_target(files.target).to(resolve_device(params.device))
    trainer = DrafterTrainer(
        new_draft_model(target, params.training_seed),
        target,
        load_codes(files.train, files.captions, encoder),
        pick(DrafterTraining, settings, cfg_scale=params.sampling["cfg_scale"]),
        params.training_seed,
    )
    history = run_training(trainer, settings["num_steps"], name="drafter", checkpoint=checkpoint)
    report = {name: value for name, value in history[-1].items() if name.startswith(("loss", "overlap"))}
    save_draft(snakemake.output.model, trainer.draft, report)
    write_json(snakemake.output.report, {**report, "history": history})
