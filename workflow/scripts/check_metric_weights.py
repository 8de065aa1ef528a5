"""Loads what images will be measured with, so that a wrong file stops a run before anything is generated."""

import torch

from lantern.io import write_json
from lantern_pipeline.metrics.registry import Workbench
from lantern_pipeline.metrics.ruler_check import check_metric_weights
from lantern_pipeline.runtime.job import job_log

with job_log(snakemake) as log:
    hashes = check_metric_weights(Workbench(snakemake.input, snakemake.params.settings, torch.device("cpu")))
    write_json(snakemake.output[0], hashes)
    log.info("the rulers can be loaded: %s", hashes)
