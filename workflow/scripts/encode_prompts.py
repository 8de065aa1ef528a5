"""Encode one shard of a prompt set with T5 and store the features. No other script loads T5, which is a large model."""

from lantern_models.text.t5 import T5TextEncoder
from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.data.shards import select_shard
from lantern_pipeline.data.text_features import write_text_features
from lantern_pipeline.fetch.manifest import resource_path, resource_sha256
from lantern_pipeline.job.context import execution_of, job_log

with job_log(snakemake) as log:
    params, settings = snakemake.params, snakemake.params.settings
    prompts = select_shard(read_prompts(snakemake.input.prompts), snakemake.wildcards.scatteritem)
    encoder = T5TextEncoder(
        resource_path(snakemake.input.t5),
        caption_dim=settings["caption_dim"],
        max_tokens=settings["max_tokens"],
        device=execution_of(snakemake).device,
    )
    # for warnings only: `write_text_features` tokenizes the prompts itself
    _, mask, is_truncated = encoder.tokenize([prompt.text for prompt in prompts])
    is_empty = mask.sum(1) == 1  # only the end token
    for prompt, is_cut, is_bare in zip(prompts, is_truncated.tolist(), is_empty.tolist(), strict=True):
        if is_cut or is_bare:
            log.warning("prompt %s %s", prompt.id, "is cut" if is_cut else f"has nothing left of {prompt.text!r:.200}")
    description = {"t5_sha256": resource_sha256(snakemake.input.t5)}
    write_text_features(snakemake.output[0], prompts, encoder, description)
    counts = len(prompts), int(is_truncated.sum()), encoder.max_tokens, int(is_empty.sum())
    log.info("encoded %d prompts; %d cut to %d tokens, %d empty after cleaning", *counts)
