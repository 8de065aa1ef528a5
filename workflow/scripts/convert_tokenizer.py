"""Converts a published image tokenizer into our layout, after comparing it with the config."""

from lantern.checkpoints.llamagen import describe_conversion, read_tokenizer
from lantern.io import write_json
from lantern.models import vq16
from lantern_pipeline.downloads.manifest import resource_path
from lantern_pipeline.runtime.job import job_log
from lantern_pipeline.world import tokenizer

with job_log(snakemake) as log:
    settings, path = snakemake.params.settings, resource_path(snakemake.input.checkpoint)
    sizes = {name: settings[name] for name in ("grid", "codebook_size", "code_dim")}
    model = read_tokenizer(path, image_size=snakemake.params.image_size, **sizes)
    report = describe_conversion(snakemake.input.checkpoint, model)
    save = vq16.save_vq16 if isinstance(model, vq16.VQ16) else tokenizer.save_model
    save(snakemake.output.model, model, report)
    write_json(snakemake.output.report, report)
    log.info("converted %s: %s", path, report)
