"""Encode one shard of the images of a split as codes, for the target, the draft model and the metrics."""

import torch
from tqdm import tqdm

from lantern.codebook import add_line_ends
from lantern.io import save_tensors
from lantern_models.checkpoints.image_tokenizers import load_tokenizer
from lantern_pipeline.data.image_sources import make_source
from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.data.shards import select_shard
from lantern_pipeline.job.context import execution_of, job_log

with job_log(snakemake) as log, torch.inference_mode():
    params = snakemake.params
    source = make_source(params.source["data"], params.seed)
    device = execution_of(snakemake).device
    # images: 16 of 256 x 256 pixels, more of smaller ones; more than these are slower or exceed GPU memory
    chunk = min(128, max(1, 16 * 256**2 // source.image_size**2))
    tokenizer = load_tokenizer(snakemake.input.tokenizer).to(device)
    split, captions = snakemake.wildcards.split, read_prompts(snakemake.input.captions)
    shard = select_shard(range(len(captions)), snakemake.wildcards.scatteritem)
    begins = tqdm(range(0, len(shard), chunk), desc=f"encoding {split}", unit="chunk", disable=None)
    # a generator, so that only one chunk of images is in memory
    images = (source.images(split, shard[begin : begin + chunk]).to(device) for begin in begins)
    codes = torch.cat([tokenizer.encode(part).cpu() for part in images])
    if params.ends_lines:  # the target generates a line-end token after each line
        codes = add_line_ends(codes, tokenizer.config.shape, len(tokenizer.codebook))
    metadata = {"split": split, "ids": [captions[index].id for index in shard]}
    # the order of the captions is lost in shards, so `load_codes` matches images by id
    save_tensors(snakemake.output[0], {"codes": codes.int()}, metadata)
    log.info("encoded %d images of %s", len(shard), split)
