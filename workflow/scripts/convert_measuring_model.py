"""Copy an attribute classifier or a CLIP model of another run, after a check that it fits the config."""

from lantern.io import write_json
from lantern.models.stored import save_model
from lantern_pipeline.fetch.manifest import describe_conversion, resource_path
from lantern_pipeline.job.context import job_log
from lantern_pipeline.measure.quality.metric_models import read_metric_model

with job_log(snakemake) as log:
    path = resource_path(snakemake.input.checkpoint)
    # raises an error that names the config key if a size differs
    model = read_metric_model(path, snakemake.wildcards.model, snakemake.params.sizes)
    report = describe_conversion(snakemake.input.checkpoint, model)
    save_model(snakemake.output.model, model, report)
    write_json(snakemake.output.report, report)
    log.info("converted %s: %s", path, report)
