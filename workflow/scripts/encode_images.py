"""Turns the training images into codes, once, for the target and the draft model."""

import torch
from tqdm import tqdm

from lantern.data import make_source
from lantern.io import save_tensors
from lantern.job import job_log, resolve_device
from lantern.models.tokenizer import load_model

CHUNK = 128  # images; larger chunks page-fault

with job_log(snakemake) as log, torch.inference_mode():
    params = snakemake.params
    source, device = make_source(params.source["data"], params.seed), resolve_device(params.device)
    tokenizer = load_model(snakemake.input.tokenizer).to(device)
    codes = [
        tokenizer.encode(source.images("train", range(begin, min(begin + CHUNK, source.num_train))).to(device)).cpu()
        for begin in tqdm(range(0, source.num_train, CHUNK), desc="encoding", unit="chunk", disable=None)
    ]
    save_tensors(snakemake.output.codes, {"codes": torch.cat(codes).int()}, {"num_images": source.num_train})
    log.info("encoded %d images", source.num_train)
