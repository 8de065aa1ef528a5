"""Measures the images of all methods on one prompt set at one temperature, and the ceilings."""

from lantern.io import save_tensors
from lantern.records import load_shards
from lantern_pipeline.data.image_sources import make_source
from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.data.tables import write_table
from lantern_pipeline.metrics.evaluate_images import load_rulers
from lantern_pipeline.metrics.quality import measure_quality
from lantern_pipeline.runtime.job import job_log, resolve_device

with job_log(snakemake):
    params, device = snakemake.params, resolve_device(snakemake.params.device)
    prompts = read_prompts(snakemake.input.prompts)
    source, metrics = params.source["data"]["source"], params.settings
    rulers = load_rulers(snakemake.input, params.text, source, params.seed, device, metrics)
    quality = measure_quality(
        load_shards(snakemake.input.records, [prompt.id for prompt in prompts]),
        prompts,
        make_source(params.source["data"], params.seed),
        rulers,
        settings=metrics,
        prompt_set=snakemake.wildcards.prompt_set,
        split=params.split,
        repeat=params.repeat,
        seed=params.seed,
    )
    write_table(snakemake.output.table, quality.rows)
    write_table(snakemake.output.images, quality.images)
    save_tensors(snakemake.output.tokens, quality.token_nll, {"prompt_ids": [prompt.id for prompt in prompts]})
