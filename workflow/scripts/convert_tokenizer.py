"""Converts a published image tokenizer into our layout, after comparing it with the config."""

from lantern.io import write_json
from lantern.job import job_log
from lantern.models import tokenizer, vq16
from lantern.models.published import describe_conversion, read_tokenizer
from lantern.resources.manifest import resource_path

with job_log(snakemake) as log:
    settings, path = snakemake.params.settings, resource_path(snakemake.input.checkpoint)
    sizes = {name: settings[name] for name in ("grid", "codebook_size", "code_dim")}
    model = read_tokenizer(path, image_size=snakemake.params.image_size, **sizes)
    report = describe_conversion(snakemake.input.checkpoint, model)
    save = vq16.save_vq16 if isinstance(model, vq16.VQ16) else tokenizer.save_model
    save(snakemake.output.model, model, report)
    write_json(snakemake.output.report, report)
    log.info("converted %s: %s", path, report)
