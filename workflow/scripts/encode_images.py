"""Turns images into codes, once, for the target and the draft model: all training images, and some held-out ones."""

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
    for split, num_images in {"train": source.num_train, "val": params.num_val}.items():
        begins = tqdm(range(0, num_images, CHUNK), desc=f"encoding {split}", unit="chunk", disable=None)
        images = (source.images(split, range(begin, min(begin + CHUNK, num_images))).to(device) for begin in begins)
        codes = torch.cat([tokenizer.encode(chunk).cpu() for chunk in images])
        save_tensors(snakemake.output[split], {"codes": codes.int()}, {"split": split})
        log.info("encoded %d images of %s", num_images, split)
