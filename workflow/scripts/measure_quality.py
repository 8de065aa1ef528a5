"""Measures the images of all methods on one prompt set at one temperature, and the ceilings."""

from lantern.assembly import make_text_encoder
from lantern.data import make_source
from lantern.io import read_prompts, write_table
from lantern.job import job_log, resolve_device
from lantern.metrics.quality import Rulers, measure_quality
from lantern.models import recogniser, tokenizer
from lantern.models.clip import ClipScorer
from lantern.models.target import load_target
from lantern.shards import load_shards

with job_log(snakemake):
    params, device = snakemake.params, resolve_device(snakemake.params.device)
    prompts = read_prompts(snakemake.input.prompts)
    rulers = Rulers(
        tokenizer.load_model(snakemake.input.tokenizer).to(device),
        recogniser.load_model(snakemake.input.recogniser).to(device),
        ClipScorer.from_checkpoint(snakemake.input.clip, device=device),
        load_target(snakemake.input.target).to(device),
        make_text_encoder(params.text, params.source["data"]["source"], params.seed),
    )
    table, images = measure_quality(
        load_shards(snakemake.input.records, [prompt.id for prompt in prompts]),
        prompts,
        make_source(params.source["data"], params.seed),
        rulers,
        settings=params.settings,
        prompt_set=snakemake.wildcards.prompt_set,
        split=params.split,
        seed=params.seed,
    )
    write_table(snakemake.output.table, table)
    write_table(snakemake.output.images, images)
