"""Train a state head on decoding steps of the frozen target, which are recorded first."""

from lantern.io import write_json
from lantern.models.config import pick
from lantern.models.stored import save_model
from lantern.sampling import SamplingConfig
from lantern_methods.state_head import StateHead
from lantern_models.checkpoints.decoding_models import load_decoding_models
from lantern_models.checkpoints.target import load_target
from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.job.context import execution_of, job_log, training_checkpoint
from lantern_pipeline.schema.run_config import TextSettings
from lantern_pipeline.training.heads import NUM_EVAL, HeadsTraining
from lantern_pipeline.training.loop import run_training
from lantern_pipeline.training.state_head import StateHeadTrainer, StateHeadValidation, record_steps

with job_log(snakemake) as log, training_checkpoint(snakemake) as checkpoint:
    params, files, seed = snakemake.params, snakemake.input, int(snakemake.wildcards.training_seed)
    execution = execution_of(snakemake)
    # The recorded steps depend on all settings of sampling, so these are parameters of the rule.
    sampling = SamplingConfig(temperature=1.0, **params.sampling)
    training = pick(HeadsTraining, params.settings, cfg_scale=sampling.cfg_scale)
    encoder = make_text_encoder(TextSettings(**params.text), params.source, [*files.features, *files.val_features])
    models = load_decoding_models(files.target, device=execution.device, dtype=params.dtype)
    prompts = read_prompts(files.captions)[: params.num_samples], read_prompts(files.val_captions)[:NUM_EVAL]
    steps, held_out = (
        record_steps(models, part, encoder, sampling, seed=seed, batch_size=execution.batch_size) for part in prompts
    )
    log.info("recorded %d steps of %d images", len(steps.image), len(steps.codes))
    # frees memory: the target in the dtype of decoding is replaced by one for training
    del models
    target = load_target(files.target, device=execution.device)
    head = StateHead.from_target(target.config, seed).to(target.device)
    trainer = StateHeadTrainer(head, target, steps, training, seed)
    history = run_training(
        trainer,
        training.num_steps,
        name="state head",
        checkpoint=checkpoint,
        validate=StateHeadValidation(trainer, held_out, sampling),
    )
    report = {name: value for name, value in history[-1].items() if name.startswith(("loss", "val_"))}
    save_model(snakemake.output.model, head, report)
    write_json(snakemake.output.report, {**report, "num_steps": training.num_steps, "history": history})
