"""Generate the images of one method, prompt set, temperature and shard, and write their records."""

from pathlib import Path

from lantern.decoding import make_decoder
from lantern.generation import decode_timed, generate_records
from lantern.records import save_records
from lantern.sampling import SamplingConfig
from lantern_models.checkpoints.decoding_models import load_decoding_models
from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.data.shards import select_shard
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.job.context import PARTIAL_EVERY_S, execution_of, job_log, partial_records
from lantern_pipeline.schema.run_config import TextSettings

with job_log(snakemake) as log, partial_records(snakemake) as partial:
    params, files, temperature = snakemake.params, snakemake.input, float(snakemake.wildcards.temperature)
    execution = execution_of(snakemake)
    (spec,) = params.methods
    # Snakemake gives an empty list for an input that the method does not need.
    draft, table = files.get("drafter") or None, files.get("nearest_codes") or None
    heads = files.get("heads") or None
    models = load_decoding_models(files.target, draft, table, execution.device, params.dtype, heads)
    sampling = SamplingConfig(temperature=temperature, **params.sampling)
    prompts = select_shard(read_prompts(files.prompts), snakemake.wildcards.scatteritem)
    # Margins of autoregressive decoding show where rounding may decide a token.
    decoder = make_decoder(models, spec, sampling, records_margins=spec.drafts is None, stepping=execution.stepping)
    encoder = make_text_encoder(TextSettings(**params.text), params.source, files.text)
    decode_timed(decoder, prompts[:1], encoder, int(snakemake.wildcards.noise_seed))  # warm-up, not recorded
    records = generate_records(
        decoder,
        prompts,
        encoder,
        run_seed=int(snakemake.wildcards.noise_seed),
        batch_size=execution.batch_size,
        partial=partial,
        partial_every_s=PARTIAL_EVERY_S,
    )
    save_records(Path(snakemake.output[0]), records)
    log.info("generated %d images in %.1f s of decoding", len(records), float(records.seconds.sum()))
