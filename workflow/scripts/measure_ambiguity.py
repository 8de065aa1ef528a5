"""Measures how much probability the target's best one and best ten next tokens hold."""

from lantern.assembly import make_text_encoder
from lantern.data import make_source
from lantern.io import write_table
from lantern.job import job_log, resolve_device
from lantern.metrics.ambiguity import measure_ambiguity
from lantern.models.target import load_target
from lantern.models.tokenizer import load_model

with job_log(snakemake):
    params, device = snakemake.params, resolve_device(snakemake.params.device)
    frame = measure_ambiguity(
        load_target(snakemake.input.target).to(device),
        load_model(snakemake.input.tokenizer).to(device),
        make_text_encoder(params.text, params.source["data"]["source"], params.seed),
        make_source(params.source["data"], params.seed),
        num_images=params.settings["num_ambiguity"],
        cfg_scales=(1.0, params.cfg_scale),
        batch_size=params.settings["batch_size"],
    )
    write_table(snakemake.output[0], frame)
