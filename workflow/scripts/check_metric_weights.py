"""Load the published metric models, so that a wrong file stops a run before it generates images."""

from lantern.io import write_json
from lantern_pipeline.job.context import job_log
from lantern_pipeline.measure.quality.metric_models import check_metric_weights
from lantern_pipeline.schema.run_config import MetricChoices

with job_log(snakemake) as log:
    hashes = check_metric_weights(MetricChoices(**snakemake.params.metrics), dict(snakemake.input.items()))
    write_json(snakemake.output[0], hashes)
    log.info("the metric models can be loaded: %s", hashes)
