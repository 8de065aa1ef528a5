"""Convert an image tokenizer of another run, or the published VQ-16, to Lantern's layout, if it fits the config."""

from lantern.io import write_json
from lantern.models.stored import save_model
from lantern_models.cards.card import ImageSettings
from lantern_models.checkpoints.image_tokenizers import read_tokenizer
from lantern_pipeline.fetch.manifest import describe_conversion, resource_path
from lantern_pipeline.job.context import job_log

with job_log(snakemake) as log:
    path = resource_path(snakemake.input.checkpoint)
    # raises an error that names the size that differs
    model = read_tokenizer(path, ImageSettings(**snakemake.params.sizes))
    report = describe_conversion(snakemake.input.checkpoint, model)
    save_model(snakemake.output.model, model, report)
    write_json(snakemake.output.report, report)
    log.info("converted %s: %s", path, report)
