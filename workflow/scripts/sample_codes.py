"""Generate one shard of images of training captions with the target, to train a draft model on their codes."""

import torch

from lantern.decoding import make_decoder
from lantern.generation import generate_records
from lantern.io import save_tensors
from lantern.methods import make_method
from lantern.sampling import SamplingConfig
from lantern_models.checkpoints.decoding_models import load_decoding_models
from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.data.shards import select_shard
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.job.context import PARTIAL_EVERY_S, execution_of, job_log, partial_records
from lantern_pipeline.schema.run_config import TextSettings

with job_log(snakemake) as log, partial_records(snakemake) as partial:
    params, files = snakemake.params, snakemake.input
    execution = execution_of(snakemake)
    encoder = make_text_encoder(TextSettings(**params.text), params.source, [*files.text, *files.val_text])
    models = load_decoding_models(files.target, device=execution.device, dtype=params.dtype)
    sampling = SamplingConfig(temperature=1.0, **params.sampling)
    decoder = make_decoder(models, make_method("autoregressive"), sampling, stepping=execution.stepping)
    captions = {
        "train": read_prompts(files.captions)[: params.num_samples],
        "val": read_prompts(files.val_captions),
    }
    shards = {split: select_shard(prompts, snakemake.wildcards.scatteritem) for split, prompts in captions.items()}
    # in one call, because the job has one partial file for both splits
    prompts = [*shards["train"], *shards["val"]]
    records = generate_records(
        decoder,
        prompts,
        encoder,
        # no noise seed, since models depend on training seeds only
        run_seed=int(snakemake.wildcards.training_seed),
        batch_size=execution.batch_size,
        partial=partial,
        partial_every_s=PARTIAL_EVERY_S,
    )
    codes = dict(zip(records.prompt_ids, records.codes, strict=True))
    for split, shard in shards.items():
        ids = [prompt.id for prompt in shard]
        save_tensors(
            snakemake.output[split], {"codes": torch.stack([codes[id] for id in ids])}, {"split": split, "ids": ids}
        )
        log.info("generated %d images of %s", len(shard), split)
