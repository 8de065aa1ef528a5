"""Follows the images of all methods token by token, beside the autoregressive ones of the same noise."""

import pandas as pd

from lantern.io import load_tensors
from lantern_pipeline.data.tables import read_table, write_table
from lantern_pipeline.metrics.image_divergence import measure_divergence
from lantern_pipeline.runtime.job import job_log

with job_log(snakemake):
    params = snakemake.params
    tables, token_nll, prompt_ids = [], {}, {}
    for table_path, tokens_path in zip(snakemake.input.images, snakemake.input.tokens, strict=True):
        tables.append(read_table(table_path))
        place = tuple(tables[-1].loc[0, ["prompt_set", "temperature", "repeat"]])
        tensors, metadata = load_tensors(tokens_path)
        token_nll[place] = {method_id: tensor.numpy() for method_id, tensor in tensors.items()}
        prompt_ids[place] = metadata["prompt_ids"]
    divergence = measure_divergence(
        pd.concat(tables, ignore_index=True), token_nll, prompt_ids, settings=params.settings, seed=params.seed
    )
    write_table(snakemake.output[0], divergence)
