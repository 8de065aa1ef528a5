"""Lets the target draw the images of one shard of the training captions, for a draft model that learns from those."""

from lantern.assembly import make_text_encoder
from lantern.decoding import Decoder
from lantern.generation import generate_records, load_decoding_models
from lantern.io import read_prompts, save_tensors
from lantern.job import job_log, resolve_device
from lantern.methods import MethodSpec
from lantern.sampling import SamplingConfig
from lantern.shards import select_shard

with job_log(snakemake) as log:
    params, files = snakemake.params, snakemake.input
    encoder = make_text_encoder(params.text, params.source, params.seed, [*files.text, *files.val_text])
    models = load_decoding_models(files.target, device=resolve_device(params.device), dtype=params.settings["dtype"])
    sampling = SamplingConfig(temperature=1.0, **params.sampling)
    decoder = Decoder(models, MethodSpec(**params.method), sampling, None)
    for split, captions in {"train": files.captions, "val": files.val_captions}.items():
        shard = select_shard(read_prompts(captions)[: params.num_samples], snakemake.wildcards.scatteritem)
        record = generate_records(
            decoder, shard, encoder, run_seed=params.training_seed, batch_size=params.settings["batch_size"]
        )
        save_tensors(snakemake.output[split], {"codes": record.codes}, {"split": split, "ids": record.prompt_ids})
        log.info("drew %d images of %s", len(shard), split)
